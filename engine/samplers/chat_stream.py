"""The chunks of a streamed chat completion as parts, whatever the endpoint's habits.

Calls come one per chunk or several, in pieces or whole, with ids or without, under one index or none. A named piece begins
a call unless it only repeats the head of the one at its index; the indices of our parts are our own. A call counts as
whole when another one begins and its arguments are JSON, else when the answer ends.

An answer is at its end when there was a finish reason. Without one the end mark `[DONE]` is taken for it if something was
said; a stream that merely stops has failed (ollama/ollama#17118, router-for-me/CLIProxyAPI#4860).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

from engine.backends.base import BackendError
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Part, Prefilled, Text, Thought
from engine.samplers.chat_markup import MarkedCall, Markup, Prose
from engine.samplers.chat_request import ChatTool, ChatTools

_FAILED: Final[Mapping[str, str]] = {
    "content_filter": "the endpoint's content filter ended the answer",
    "error": "the endpoint ended the answer because of an error of its own",
}


@attrs.define
class _Call:
    """A call being read."""

    number: int
    """Ours."""
    call_id: str | None = None
    name: str | None = None
    tool: ChatTool | None = None
    pieces: list[str] = attrs.field(factory=list)
    over: bool = False

    @property
    def written(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Are the arguments JSON by now?"""
        return bool(self.pieces) and _is_json(self.written)


class ChatReader:
    """Reads one answer. Everything here may raise `BackendError`: a failure was reported, or what came is no chunk."""

    def __init__(self, tools: ChatTools, url: str) -> None:
        self._tools = tools
        self._url = url
        self._markup = Markup(tools.offers) if tools.functions() else None
        self._finish: str | None = None
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        """The latest call of each of the endpoint's indices."""
        self._late: list[Part] = []
        """Said in the middle of a call."""
        self._said = False
        self._tokens = 0
        """Stood for by parts so far."""
        self.usage: Mapping[str, Any] = {}
        self.prefilled: Prefilled | None = None
        """As the endpoint counts, at the end; None: it does not."""
        self.says_cached = False
        """Does that say how much was cached? Else nothing is known to be."""

    @property
    def finished(self) -> bool:
        """Was there a finish reason? Only usage follows."""
        return self._finish is not None

    def feed(self, chunk: Any) -> list[Part]:
        """The parts of one chunk."""
        parts: list[Part] = []
        try:
            if chunk.get("error"):
                raise self._failure(chunk["error"])
            self._read_usage(chunk)
            for choice in chunk.get("choices") or ():
                if not choice.get("index"):
                    parts += self._read(choice.get("delta") or choice.get("message") or {})
                    self._finish = choice.get("finish_reason") or self._finish
        except (TypeError, AttributeError, KeyError, ValueError):
            raise self._broken(f"sent a chunk of another shape: {str(chunk)[:200]}") from None
        self._tokens += sum(part.tokens for part in parts)
        return parts

    def end(self, *, done: bool) -> list[Part]:
        """The answer is over: the last parts, `End` included. `done`: by its end mark."""
        parts = list(self._found(self._markup.end())) if self._markup else []
        self._said = self._said or bool(parts)
        if self._finish is None and not (done and self._said):
            raise BackendError("died", f"{self._url} ended its answer without a finish reason")
        if self._finish is not None and self._finish in _FAILED:
            raise BackendError("refused", f"{self._url}: {_FAILED[self._finish]}")
        if self._finish == "tool_calls" and not self._said:
            raise self._broken("says that it called a tool, and sent no call")
        for call in self._calls:
            parts += self._end_call(call, cut=self._finish == "length")
        parts += self._late
        tokens = self._tokens + sum(part.tokens for part in parts)
        missing = max(0, _count(self.usage.get("completion_tokens")) - tokens)
        if self.prefilled is not None:
            parts.append(self.prefilled)
        return [*parts, End("length" if self._finish == "length" else "stop", missing)]

    # --- deltas ----------------------------------------------------------------------------------------------------

    def _read(self, delta: Mapping[str, Any]) -> Iterator[Part]:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            yield from self._prose(Thought(thought))
        text = _joined(delta.get("content")) + (delta.get("refusal") or "")
        if text:
            yield from self._found(self._markup.feed(text)) if self._markup else self._text(text)
        pieces = delta.get("tool_calls") or ()
        if delta.get("function_call"):
            pieces = [*pieces, {"index": 0, "function": delta["function_call"]}]
        if pieces and self._markup:
            yield from self._found(self._markup.end())
        seen: set[int] = set()
        for piece in pieces:
            yield from self._read_call(piece, seen)

    def _text(self, text: str) -> Iterator[Part]:
        self._said = True
        yield from self._prose(Text(text))

    def _prose(self, part: Text | Thought) -> Iterator[Part]:
        """Prose ends the calls before it; what is said in the middle of one waits, for the call would be torn."""
        yield from self._end_whole_calls()
        self._late.append(part)
        if all(call.over for call in self._calls):
            yield from self._late
            self._late.clear()

    def _found(self, found: Iterator[Prose | MarkedCall]) -> Iterator[Part]:
        """A chunk is one token by our count, however many pieces it makes: the rest is corrected at the end."""
        for one in found:
            if isinstance(one, MarkedCall):
                call = _Call(len(self._calls))
                yield from self._begin(call, one.name, None)
                yield from self._write(call, one.arguments)
                yield from self._end_call(call)
            elif one.thought:
                yield from self._prose(Thought(one.text))
            else:
                yield from self._text(one.text)

    # --- calls -----------------------------------------------------------------------------------------------------

    def _read_call(self, piece: Mapping[str, Any], seen: set[int]) -> Iterator[Part]:
        """A piece of a call; `seen` are the indices that this chunk has had already."""
        function = piece.get("function") or piece.get("custom") or {}
        name, call_id = function.get("name") or None, piece.get("id") or None
        arguments = _as_text(function.get("arguments", function.get("input")))
        index = piece.get("index")
        call = self._call_meant(index, call_id, name, arguments, repeated=index in seen)
        if call is None:
            yield from self._end_whole_calls()
            call = _Call(len(self._calls))
            yield from self._begin(call, name, call_id)
        elif call.name is None and name:
            yield from self._name(call, name, call_id)
        if index is not None:
            seen.add(index)
            self._at[index] = call
        yield from self._write(call, arguments)

    def _call_meant(
        self, index: int | None, call_id: str | None, name: str | None, arguments: str, *, repeated: bool
    ) -> _Call | None:
        """The call that a piece goes on with; None: it begins one."""
        if index is not None:
            call = self._at.get(index)
        elif call_id is not None:
            call = next((call for call in reversed(self._calls) if call.call_id == call_id), None)
        else:
            call = self._calls[-1] if self._calls and name is None else None
        if call is None or name is None or call.name is None:
            return call
        other_id = call_id is not None and call_id != call.call_id
        again = call.name != name or repeated or (bool(arguments) and call.is_whole)
        return None if other_id or again else call

    def _begin(self, call: _Call, name: str | None, call_id: str | None) -> Iterator[Part]:
        self._said = True
        self._calls.append(call)
        if name is not None:
            yield from self._name(call, name, call_id)

    def _name(self, call: _Call, name: str, call_id: str | None) -> Iterator[Part]:
        call.name, call.tool, call.call_id = name, self._tools.find(name), call_id
        yield CallStart(call.number, call.tool.name, call.tool.namespace, call_id)
        if call.pieces and call.tool.kind != "custom":
            yield CallInput(call.number, call.written, 0)

    def _write(self, call: _Call, arguments: str) -> Iterator[Part]:
        if not arguments or call.over:
            return
        call.pieces.append(arguments)
        if call.tool is not None and call.tool.kind != "custom":
            yield CallInput(call.number, arguments)

    def _end_whole_calls(self) -> Iterator[Part]:
        """So that the next call can be written while it comes."""
        for call in self._calls:
            if not call.over and call.is_whole:
                yield from self._end_call(call)

    def _end_call(self, call: _Call, *, cut: bool = False) -> Iterator[Part]:
        """`cut`: by a limit, perhaps in the middle of its arguments."""
        if call.over:
            return
        if call.tool is None:
            raise self._broken("sent the arguments of a call without a name")
        call.over = True
        if call.tool.kind == "custom" and not (cut and not call.is_whole):
            yield CallInput(call.number, _input_of(call.written), 0)
        if not cut or call.is_whole:
            yield CallEnd(call.number)

    # --- counts and failures ---------------------------------------------------------------------------------------

    def _read_usage(self, chunk: Mapping[str, Any]) -> None:
        """Of llama.cpp `timings`, too, and of DeepSeek its own name for the same."""
        usage, timings = chunk.get("usage"), chunk.get("timings")
        if usage:
            self.usage = usage
            details = usage.get("prompt_tokens_details") or {}
            prompt = _count(usage.get("prompt_tokens"))
            cached = details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
            self.says_cached = type(cached) is int
            cached = min(_count(cached), prompt)
            self.prefilled = Prefilled(cached, prompt - cached, exact=prompt > 0)
        if timings and not self.says_cached and type(timings.get("cache_n")) is int:
            self.says_cached = True
            self.prefilled = Prefilled(timings["cache_n"], _count(timings.get("prompt_n")), exact=True)

    def _failure(self, error: Any) -> BackendError:
        code, message = None, error
        if isinstance(error, Mapping):
            code, message = error.get("code"), error.get("message", error)
        refused = type(code) is int and 400 <= code < 500
        return BackendError("refused" if refused else "died", f"{self._url}: {str(message)[:300]}")

    def _broken(self, how: str) -> BackendError:
        return BackendError("broke_promise", f"{self._url} {how}")


def _joined(content: Any) -> str:
    """Text, or parts of text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(part["text"]) for part in content if part.get("type") == "text")


def _as_text(arguments: Any) -> str:
    """JSON text, or the object that it stands for."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return orjson.dumps(arguments).decode()


def _input_of(written: str) -> str:
    """What a custom tool is given; a model that wrote no JSON meant it so."""
    try:
        value = orjson.loads(written or "{}")
    except ValueError:
        return written
    if isinstance(value, dict) and set(value) <= {"input"}:
        return _as_text(value.get("input"))
    return written


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _count(number: Any) -> int:
    return number if type(number) is int and number >= 0 else 0
