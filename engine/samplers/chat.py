"""Any chat-completions endpoint in the place of a model, for whoever has one: Ollama, llama.cpp, vLLM, a hosted one.

**Nothing is promised to stay warm.** Chat knows no suspended model: each segment sends the whole conversation again, as
text, and whether the endpoint finds a part of it in a cache is its own matter. So a tool call costs what a new request
costs. What the endpoint says it had cached is reported; of one that says nothing, nothing is.

What else is lost on the way: the model's tokens (text is tokenized anew by the endpoint), its reasoning of earlier
segments, and exact counts while it streams: a chunk counts as one token, and the endpoint's own count corrects that at
the end. An endpoint that reports no usage is counted in chunks.

Leaving a segment closes the connection, which is how such endpoints are told to stop.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import attrs
import trio

from engine.backends.base import BackendError
from engine.backends.http import BackendHttp
from engine.backends.options import HTTP_OPTIONS, http_of, split_options, yes_or_no
from engine.config import Limits
from engine.samplers.base import Appended, Prefilled, Prompt, Sampling, Steps
from engine.samplers.chat_request import ChatTools, messages_of, tool_choice_of, tools_in
from engine.samplers.chat_stream import ChatReader
from protocol.items import CALLS, Item, McpCall, Message

PATH: Final = "/chat/completions"
NOTICE: Final = "no warm state is promised: each segment sends the whole conversation again, as text"
"""What whoever names such a sampler is told."""
USAGE_SECONDS: Final = 2.0
"""How long the counts may follow after the finish reason."""


@attrs.define
class ChatStatistics:
    """Since the start."""

    requests: int = 0
    prompt_tokens: int = 0
    """Of all requests, as the endpoint counts: the whole conversation each time."""
    cached_tokens: int = 0
    """Of these the endpoint had cached, as it says."""
    uncounted_requests: int = 0
    """Requests of which the endpoint did not say what it had cached, those that were left included."""


class ChatSampler:
    """`Sampler` over one endpoint. `model`: its name there; None = the name that the client asked for."""

    def __init__(
        self,
        http: BackendHttp,
        *,
        model: str | None = None,
        keeps_text_format: bool = False,
        asks_usage: bool = True,
    ) -> None:
        self.http = http
        self.model = model
        self.keeps_text_format = keeps_text_format
        self.asks_usage = asks_usage
        self.statistics = ChatStatistics()

    async def run(self) -> None:
        """Wait until cancelled, and close the connections that are idle then. It works without, too."""
        try:
            await trio.sleep_forever()
        finally:
            await self.http.aclose()

    def open(self, prompt: Prompt) -> Sampling:
        """Start a rollout."""
        return _Chatting(self, prompt)


class _Chatting:
    def __init__(self, sampler: ChatSampler, prompt: Prompt) -> None:
        self._sampler = sampler
        self._prompt = prompt
        self._tools = ChatTools(prompt.tools)
        self._items: list[Item] = []

    async def sample(self, appended: Appended) -> Steps:
        await trio.lowlevel.checkpoint()
        self._items += appended.items
        self._tools.add(tools_in(appended.items))
        yield (Prefilled(),)  # until the endpoint says something: nothing is known to be cached
        http = self._sampler.http
        reader, done = ChatReader(self._tools, http.url), False
        try:
            async with aclosing(http.stream_json(PATH, self._request(), shows_done=True)) as chunks:
                while (chunk := await _next_chunk(chunks, reader)) is not _NOTHING:
                    done = chunk is None
                    parts = [] if done else reader.feed(chunk)
                    if parts:
                        yield parts
        finally:
            self._count(reader)
        yield reader.end(done=done)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _request(self) -> Mapping[str, Any]:
        sampler, prompt = self._sampler, self._prompt
        request: dict[str, Any] = {
            "model": sampler.model or prompt.model,
            "messages": messages_of(self._items, prompt.instructions, self._tools),
            "stream": True,
        }
        wished = {"temperature": prompt.temperature, "top_p": prompt.top_p}
        request |= {name: value for name, value in wished.items() if value is not None}
        if sampler.asks_usage:
            request["stream_options"] = {"include_usage": True}
        choice, only = tool_choice_of(prompt.tool_choice, self._tools, called=_has_called(self._items))
        functions = self._tools.functions(only)
        if functions:
            request["tools"] = functions
            if choice != "auto":
                request["tool_choice"] = choice
        if prompt.text_format is not None:
            request["response_format"] = _response_format(prompt.text_format)
        return request

    def _count(self, reader: ChatReader) -> None:
        statistics = self._sampler.statistics
        statistics.requests += 1
        statistics.uncounted_requests += not reader.says_cached
        if reader.prefilled is not None:
            statistics.prompt_tokens += reader.prefilled.reused + reader.prefilled.computed
            statistics.cached_tokens += reader.prefilled.reused


def is_chat(spec: str) -> bool:
    """Does a sampler's spec mean one of this kind?"""
    return spec.startswith("chat:")


def make_chat(rest: str, limits: Limits) -> ChatSampler:  # noqa: ARG001  # the shape of all factories
    """The sampler of a spec after `chat:`, `http://127.0.0.1:11434/v1?model=NAME&key=VARIABLE`. `ValueError`: what is wrong.

    `formats=yes`: the endpoint keeps to a `response_format`. `usage=no`: it does not know `stream_options`.
    """
    url, options = split_options("chat", rest, (*HTTP_OPTIONS, "model", "formats", "usage"))
    return ChatSampler(
        http_of("chat", url, options),
        model=options.get("model"),
        keeps_text_format=yes_or_no("chat", options, "formats", default=False),
        asks_usage=yes_or_no("chat", options, "usage", default=True),
    )


_NOTHING: Final = object()


async def _next_chunk(chunks: AsyncGenerator[Any, None], reader: ChatReader) -> Any:
    """The next chunk; `_NOTHING` at the end. After the finish reason an end of any kind is one, and soon."""
    chunk: Any = _NOTHING
    patience = USAGE_SECONDS if reader.finished else float("inf")
    try:
        with trio.move_on_after(patience):
            chunk = await anext(chunks)
    except StopAsyncIteration:
        pass
    except BackendError:
        if not reader.finished:
            raise
    return chunk


def _has_called(items: list[Item]) -> bool:
    """Has the model called anything since the last word of the user?"""
    for item in reversed(items):
        if isinstance(item, Message) and item.role == "user":
            return False
        if isinstance(item, (*CALLS, McpCall)):
            return True
    return False


def _response_format(text_format: Mapping[str, Any]) -> Mapping[str, Any]:
    """Chat has the members of a schema one level deeper."""
    if text_format["type"] != "json_schema":
        return {"type": text_format["type"]}
    inner = {
        key: text_format[key] for key in ("name", "description", "schema", "strict") if key in text_format
    }
    return {"type": "json_schema", "json_schema": inner}
