"""Text of a model as tokens, marks as ids; two vocabularies: one that has marks for calls, one that has not."""

import re
from array import array
from functools import cache

from engine.formats.byte_pairs import BytePairs
from engine.formats.chatml import ChatML, ChatMLOptions
from engine.formats.hermes import HermesParser
from engine.formats.quick_tokenizer import quick_tokenizer
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Prefilled, Text, Thought

QWEN = quick_tokenizer("qwen3")

BARE_SPECIALS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}


@cache
def bare():
    """A vocabulary of bytes and a few pairs, without marks for calls, as SmolLM2's."""
    ids = {bytes([byte]): 3 + byte for byte in range(256)}
    for pair in (b"th", b'{"', b"</", b"_call", b"name", b'": "', b"tool", b"\n\n", b" <", b"ool_c"):
        for size in range(2, len(pair) + 1):
            ids.setdefault(pair[:size], 3 + len(ids))
    return BytePairs(ids, lambda left, right: ids.get(left + right), BARE_SPECIALS, "gpt-2")


VOCABULARIES = {"qwen": lambda: QWEN, "bare": bare}


def tokens_of(text, tokenizer=QWEN):
    """A model's own text: what is spelled like a control token is one."""
    marks = sorted(tokenizer.specials, key=len, reverse=True)
    ids = array("I")
    for piece in re.split(f"({'|'.join(map(re.escape, marks))})", text):
        if piece in tokenizer.specials:
            ids.append(tokenizer.specials[piece])
        else:
            ids.extend(tokenizer.encode(piece))
    return ids


def text_of_tokens(ids, tokenizer=QWEN):
    """Tokens as people read them, control tokens in their spelling."""
    spellings = {number: mark.encode() for mark, number in tokenizer.specials.items()}
    return b"".join(spellings.get(token) or tokenizer.token_bytes(token) for token in ids).decode()


def chatml(tokenizer=QWEN, **options):
    return ChatML(tokenizer, ChatMLOptions(**options))


def parts_of(parser: HermesParser, ids, reason="stop"):
    """All parts of a segment."""
    parts = [part for token in ids for part in parser.feed(token)]
    return [*parts, *parser.end(reason)]


def joined(parts):
    """What parts say, whatever pieces they came in: texts, thoughts and calls in order, and the end."""
    said: list = []
    for part in parts:
        match part:
            case Text(text) | Thought(text):
                kind = "text" if isinstance(part, Text) else "thought"
                if said and said[-1][0] == kind:
                    said[-1] = (kind, said[-1][1] + text)
                else:
                    said.append((kind, text))
            case CallStart(index, name, namespace):
                said.append(("call", index, namespace, name, "", "open"))
            case CallInput(index, text):
                at = next(at for at, one in enumerate(said) if one[:2] == ("call", index))
                assert said[at][5] == "open"
                said[at] = (*said[at][:4], said[at][4] + text, "open")
            case CallEnd(index):
                at = next(at for at, one in enumerate(said) if one[:2] == ("call", index))
                said[at] = said[at][:5]
            case End(reason):
                said.append(("end", reason))
            case Prefilled():
                pass
    return said
