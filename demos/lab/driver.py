"""Runs one rollout in one arm and measures it, turn by turn, from the time at which it was meant to begin.

The client is the engine's own in every arm. What an arm does besides is said to it in two places: its requests ask for
their connection to be closed (`naive`), or its form sends the whole history over WebSocket (`ws-full`).
Everything is timed from the frames as they are sent and heard, so all arms are measured by the same code, in wall and in
virtual time: `open_stream` says where connections come from.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import attrs
import trio

from demos.lab.arms import Arm
from demos.lab.content import INSTRUCTIONS, TOOL, TOOLS, ClientContent
from demos.lab.records import Turn
from demos.lab.relay import OpenStream
from demos.lab.server import LIMITS
from engine.client import Client, ConnectionLostError, RolloutRefusedError, connect
from engine.client_forms import FORMS, Progress
from engine.client_http import open_http
from engine.handshake import HandshakeFailed
from engine.recorder import NoRecorder
from engine.transport import TransportClosed
from protocol.errors import RemoteProtocolError
from protocol.events import TERMINAL_CLASSES, ClientEvent
from protocol.items import Output

URL: Final = "ws://localhost/v1/responses"
MODEL: Final = "lab"
_FAILURES: Final = (
    RolloutRefusedError,
    ConnectionLostError,
    RemoteProtocolError,
    TransportClosed,
    HandshakeFailed,
    trio.TooSlowError,
    OSError,
    trio.BrokenResourceError,
)
_DELTAS: Final = (
    b'{"type":"response.output_text.delta"',
    b'{"type":"response.function_call_arguments.delta"',
)
_CREATED: Final = b'{"type":"response.created"'


@attrs.frozen(kw_only=True)
class Measured:
    """One rollout as its client saw it, in seconds from its intended start."""

    late_s: float
    created_s: float | None
    ttft_s: float | None
    total_s: float | None
    turns: tuple[Turn, ...]
    error: str | None


@attrs.define
class _Turn:
    sent_s: float
    bytes_up: int
    bytes_down: int
    """Both as they stood before it."""
    first_s: float | None = None
    done_s: float | None = None


class Stopwatch(NoRecorder):
    """A client's recorder: when what passes. Each frame that is sent begins a turn, once `turns_begin`."""

    def __init__(self, intended: float) -> None:
        """`intended`: in `trio.current_time()`."""
        self.created_s: float | None = None
        self.first_s: float | None = None
        self._intended = intended
        self._turns: list[_Turn] = []
        self._counting = False
        self._read_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def now_s(self) -> float:
        """Since the intended start."""
        return trio.current_time() - self._intended

    def turns_begin(self, client: Client) -> None:
        """What is sent from now on are turns; `client` counts its bytes."""
        self._counting = True
        self._read_bytes = lambda: (client.bytes_out, client.bytes_in)

    def frame_in(self, text: bytes) -> None:  # noqa: ARG002  # a recorder's signature
        """The client sends."""
        if self._counting:
            self._turns.append(_Turn(self.now_s(), *self._read_bytes()))

    def frame_out(self, text: bytes) -> None:
        """The client hears."""
        now_s = self.now_s()
        if self.created_s is None and text.startswith(_CREATED):
            self.created_s = now_s
        if not self._turns:
            return
        turn = self._turns[-1]
        turn.done_s = now_s
        if turn.first_s is None and text.startswith(_DELTAS):
            turn.first_s = now_s
            self.first_s = now_s if self.first_s is None else self.first_s

    def turns(self) -> Iterator[Turn]:
        """All of them; the first one's bytes have what opened the connection in them."""
        up, down = 0, 0
        marks = [(turn.bytes_up, turn.bytes_down) for turn in self._turns[1:]] + [self._read_bytes()]
        for turn, (next_up, next_down) in zip(self._turns, marks, strict=False):
            yield Turn(
                sent_s=turn.sent_s,
                first_s=turn.first_s,
                done_s=turn.done_s,
                bytes_up=next_up - up,
                bytes_down=next_down - down,
            )
            up, down = next_up, next_down


async def drive(
    arm: Arm, content: ClientContent, open_stream: OpenStream, *, intended: float, timeout_seconds: float
) -> Measured:
    """Wait until `intended`, in `trio.current_time()`, and run the rollout; its connection is a part of it. Never fails:

    what the rollout fails with is in the result.
    """
    await trio.sleep_until(intended)
    watch = Stopwatch(intended)
    late_s, total_s, error = watch.now_s(), None, None
    try:
        with trio.fail_after(timeout_seconds):
            async with AsyncExitStack() as stack:
                client = await _open(arm, open_stream, watch, stack)
                status = await _run(arm, content, client, watch)
                total_s = watch.now_s()
                turns = tuple(watch.turns())
        if status != "completed":
            total_s, error = None, f"it ended with status {status}"
    except _FAILURES as failure:
        total_s, error, turns = None, f"{type(failure).__name__}: {failure}", tuple(watch.turns())
    return Measured(
        late_s=late_s,
        created_s=watch.created_s,
        ttft_s=watch.first_s,
        total_s=total_s,
        turns=turns,
        error=error,
    )


async def _run(arm: Arm, content: ClientContent, client: Client, watch: Stopwatch) -> str:
    """The rollout's status at its end."""
    members: dict[str, Any] = {"instructions": INSTRUCTIONS, "tools": TOOLS, "store": False}
    given = (*content.history, *content.prompt)
    if arm.at_once:
        return await _run_at_once(content, client, watch, members)
    if arm.warms_up:
        async with client.rollout(model=MODEL, input=content.history, generate=False, **members) as warm_up:
            members["previous_response_id"] = (await warm_up.wait_ended()).id
        given = content.prompt
    watch.turns_begin(client)
    functions = {TOOL: _tool(content)}
    async with client.rollout(model=MODEL, input=given, functions=functions, **members) as rollout:
        return (await rollout.wait_ended()).status


async def _run_at_once(
    content: ClientContent, client: Client, watch: Stopwatch, members: Mapping[str, Any]
) -> str:
    """Hears the one response to its end; what it calls is left uncalled."""
    watch.turns_begin(client)
    functions = {TOOL: _never}
    async with client.rollout(
        model=MODEL, input=content.at_once(), functions=functions, **members
    ) as rollout:
        async for event in rollout:
            if isinstance(event, TERMINAL_CLASSES):
                return event.response.status
    raise ConnectionLostError(f"the connection ended before the response did: {rollout.lost}")


async def _never(step: int) -> str:  # noqa: ARG001  # a tool's signature
    await trio.sleep_forever()


def _tool(content: ClientContent) -> Callable[..., Any]:
    async def work(step: int) -> str:
        await trio.sleep(content.tool_seconds[step])
        return content.outputs[step]

    return work


# --- what an arm does besides --------------------------------------------------------------------------------------


async def _open(arm: Arm, open_stream: OpenStream, watch: Stopwatch, stack: AsyncExitStack) -> Client:
    if arm.form == "http":
        row = FORMS["http"]
        headers = [*row.headers, *((("Connection", "close"),) if arm.fresh_connections else ())]
        opened = open_http(row.url(URL), headers, LIMITS, await open_stream(), open_stream)
        return Client(await stack.enter_async_context(opened), "http", watch, LIMITS)
    client = await stack.enter_async_context(
        connect(URL, form=arm.form, limits=LIMITS, recorder=watch, stream=await open_stream())
    )
    if arm.whole_history:
        client.form = attrs.evolve(client.form, go_on=_whole_history)
    return client


def _whole_history(progress: Progress, _outputs: tuple[Output, ...]) -> ClientEvent:
    return attrs.evolve(progress.create, input=tuple(progress.items))
