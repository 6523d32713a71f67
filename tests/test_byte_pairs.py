"""Vocabularies out of model files, and their tokens against a tokenizer that others made."""

import struct
import unicodedata
from array import array

import pytest
import quicktok
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.formats.byte_pairs import BytePairs
from engine.formats.gguf import read_metadata
from engine.formats.quick_tokenizer import NAMES, quick_tokenizer
from engine.formats.registry import make_format

SMALL = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        *("a", "b", "c", "Ġ", "1", "2", "12", "ab", "Ġab", "Ċ", "ï", "¿", "½", "<", "|", "bc"),
    ],
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 16],
    "tokenizer.ggml.merges": ["b c", "a b", "Ġ ab", "1 2"],
    "tokenizer.chat_template": "{{'<|im_start|>' + role}}",
    "general.quantization_version": 2,
    "some.flag": True,
    "some.number": 0.5,
    "some.numbers": [1, 2],
}


def gguf(metadata, *, version=3):
    """A file of that format, without tensors."""

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def typed(value):
        match value:
            case bool():
                return 7, struct.pack("<?", value)
            case int():
                return 4, struct.pack("<I", value)
            case float():
                return 6, struct.pack("<f", value)
            case str():
                return 8, text(value)
        kind = typed(value[0])[0]
        return 9, struct.pack("<IQ", kind, len(value)) + b"".join(typed(entry)[1] for entry in value)

    data = b"GGUF" + struct.pack("<IQQ", version, 0, len(metadata))
    for key, value in metadata.items():
        kind, written = typed(value)
        data += text(key) + struct.pack("<I", kind) + written
    return data


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(SMALL))
    return path


def test_all_metadata_is_read(small):
    """Numbers, flags, texts and lists come back as they were written."""
    assert SMALL == read_metadata(small)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGML....", "not a GGUF file"),
        (b"", "not a GGUF file"),
        (gguf(SMALL, version=1), "GGUF version 1; versions 2 and 3 can be read"),
        (gguf(SMALL)[:100], "cut off or damaged"),
        (gguf(SMALL)[:30], "cut off or damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40), "a text of 1099511627776 bytes"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99),
            "a value of unknown type 99",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 50),
            "a list of 1125899906842624 entries",
        ),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, data, message):
    """The file is named, and what is wrong with it."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as refused:
        read_metadata(path)
    assert str(path) in str(refused.value)


def test_words_are_joined_by_the_earliest_merge_first(small):
    """`abc` is a·bc, because that merge is earlier; digits stand alone; a control token's spelling is text."""
    tokenizer = BytePairs.from_gguf(small)
    spelled = [tokenizer.token_bytes(token) for token in tokenizer.encode("abc ab12\n")]
    assert [b"a", b"bc", b" ab", b"1", b"2", b"\n"] == spelled
    assert {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2} == tokenizer.specials
    assert b"" == tokenizer.token_bytes(1)


def test_a_character_that_the_vocabulary_cannot_spell_is_replaced(small):
    """It has no tokens for these bytes; what comes out is a sign that there was something, and the rest is whole."""
    tokenizer = BytePairs.from_gguf(small)
    assert "a\ufffd\ufffdb" == b"".join(map(tokenizer.token_bytes, tokenizer.encode("aé😀b"))).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "a vocabulary of kind 'llama'; only 'gpt2'"),
        (
            {"tokenizer.ggml.pre": "tekken"},
            "cut by the rule 'tekken'; known are default, gpt-2, qwen2, smollm",
        ),
    ],
)
def test_a_vocabulary_of_another_kind_is_refused(change, message):
    """What it is, what can be read, and what to use instead."""
    with pytest.raises(ValueError, match=message):
        BytePairs.from_metadata({**SMALL, **change})


def test_a_lone_surrogate_is_refused(small):
    """Half a character has no bytes."""
    for tokenizer in (BytePairs.from_gguf(small), quick_tokenizer("qwen3")):
        with pytest.raises(ValueError, match="surrogate"):
            tokenizer.encode("a\ud800")


# --- against others ----------------------------------------------------------------------------------------------------

QWEN = quicktok.get_encoding("qwen3")
RANKS = {bytes(QWEN.decode_single_token_bytes(token)): token for token in range(151_643)}
OURS = BytePairs(RANKS, lambda left, right: RANKS.get(left + right), {}, "qwen2")

mixed = st.lists(
    st.sampled_from(
        [*"abXY '\t\r\n 019_-.,!|<>{}\"", "  ", "'s", "'LL", "é", "中", "😀", "ß", "\u3000", "\x85", "\x1c"]
    )
    | st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn"]), max_size=3),
    max_size=20,
).map("".join)


@settings(max_examples=300)
@given(text=mixed)
@example(text="a" * 5000)
@example(text=" \n \n\n  x 12 345\r\n\r\n don't DON'T")
def test_the_tokens_are_those_of_another_tokenizer(text):
    """With Qwen's vocabulary, ids equal those of an independent implementation, which composes characters first."""
    text = unicodedata.normalize("NFC", text)
    assert list(QWEN.encode_ordinary(text)) == list(OURS.encode(text))


@pytest.mark.parametrize("tokenizer", [OURS, *map(quick_tokenizer, NAMES)], ids=["ours", *NAMES])
@given(text=st.text(st.characters(codec="utf-8")))
@example(text="cafe\u0301 \u0316\u0657 \u1100\u1161 \u212b")
def test_any_text_comes_back(tokenizer, text):
    """Tokens are a spelling of the text, whatever it is, composed or not."""
    assert text == b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode()


def test_a_long_word_is_joined_in_reasonable_time():
    """A quarter of a million letters without a gap are some ten times as much work as a tenth of them, not a hundred."""
    counted = [0, 0]

    def tokens(place, size):
        def rank(left, right):
            counted[place] += 1
            return RANKS.get(left + right)

        return BytePairs(RANKS, rank, {}, "qwen2").encode("ab" * size)

    tokens(0, 2_000), tokens(1, 20_000)
    assert counted[1] < 12 * counted[0]


def test_a_carried_vocabulary_knows_its_control_tokens():
    """Their ids spell nothing, and neither do those that there are not."""
    tokenizer = quick_tokenizer("qwen3")
    assert 151_644 == tokenizer.specials["<|im_start|>"]
    assert [b"", b"", b"!"] == [tokenizer.token_bytes(token) for token in (151_644, 999_999, 0)]


# --- by name -----------------------------------------------------------------------------------------------------------


def test_a_model_file_says_what_it_speaks(small):
    """Template and vocabulary come from the file, if nothing else is said."""
    format_ = make_format(None, None, {"forced_calls": "2", "strict": "yes", "system": "Hi"}, small)
    assert ("chatml", frozenset({0, 2})) == (format_.name, format_.stop_tokens)
    options = format_._options
    assert (2, True, "Hi", False) == (options.forced_calls, options.strict, options.system, options.thinks)
    assert array("I", [3]) == format_._tokenizer.encode("a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, {}), "which format does the model speak"),
        (("chatml", None, {}), "which vocabulary does the model have"),
        (("alpaca", "qwen3", {}), "no format 'alpaca'; there are chatml, harmony"),
        (("chatml", "gpt5", {}), "no vocabulary 'gpt5'; there are qwen3"),
        (
            ("chatml", "qwen3", {"loud": "yes"}),
            "no option 'loud'; there are forced_calls, strict, system, thinks",
        ),
        (("chatml", "qwen3", {"strict": "maybe"}), "strict='maybe' is neither yes nor no"),
        (("chatml", "qwen3", {"forced_calls": "-1"}), "forced_calls='-1' is not a whole number"),
        (("harmony", None, {"loud": "yes"}), "no option .loud."),
    ],
)
def test_what_cannot_be_made_says_what_there_is(arguments, message):
    """Formats, vocabularies and options by name; each refusal lists them."""
    with pytest.raises(ValueError, match=message):
        make_format(*arguments)
