"""Parts of a sampler → items and their events, in the one legal order (reference 2.3).

Items are written one after the other: the next begins when the last is done.
Pieces of a second call that arrive while a first is open are held and written when it ends, so alternating pieces give
two whole items (BerriAI/litellm#21331).
Calls of hosted tools are written when the segment is over: their item stays open while the tool runs, and the calls that
a client must run are announced first, so that both run at once.

Texts are kept as lists of pieces and joined once: a megabyte of single characters costs linear time.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from engine.hosted import HostedCall
from engine.open_items import Emit, NewId, OneByOne, OpenCall, OpenText, SampledCall
from engine.outbox import Way
from engine.samplers.base import CallInput, CallStart
from engine.stages import Tool, ToolTable
from protocol import events
from protocol.dialects import Dialect
from protocol.events import OutputItemAdded, OutputItemDone
from protocol.items import CALLS, Item, McpCall, Phase


class ItemBoundary(Exception):  # noqa: N818  # not an error: how a segment is left between two items
    """An item is done, and `Assembly.stops_after_item` asked for that."""


class Assembly:
    """The output of one rollout: `items` done so far, in `output_index` order."""

    __slots__ = (
        "_begun",
        "_calls",
        "_dialect",
        "_emit",
        "_known_call",
        "_new_id",
        "_offered",
        "_open",
        "_tools",
        "client_calls",
        "hosted",
        "items",
        "stops_after_item",
        "way",
    )

    def __init__(
        self, emit: Emit, new_id: NewId, dialect: Dialect, tools: ToolTable, known_call: Callable[[str], bool]
    ) -> None:
        self._emit = emit
        self.way: Way | None = None
        """A shorter way for an item's events than one after the other, as an outbox has."""
        self._new_id = new_id
        self._dialect = dialect
        self._tools = tools
        self._known_call = known_call
        self.items: list[Item] = []
        self._open: OpenText | OpenCall | None = None
        self._calls: dict[int, SampledCall] = {}
        self._offered: tuple[str, ...] = ()
        """Call ids of the backend's own in this segment: few, and in most none."""
        self._begun = 0
        self.hosted: list[HostedCall] = []
        self.client_calls = 0
        """Calls of this segment that a client must run."""
        self.stops_after_item = False
        """Somebody waits for the end of the item that is being written (`ItemBoundary`)."""

    # --- parts -------------------------------------------------------------------------------------------------

    def text(self, piece: str) -> None:
        """A piece of the answer."""
        self.texts((piece,))

    def texts(self, pieces: Sequence[str]) -> None:
        """Pieces of the answer, one or more; each is an event."""
        open_ = self._open
        if type(open_) is not OpenText or open_.kind != "message":
            open_ = self._prose("message")
        open_.write(pieces)

    def thought(self, piece: str) -> None:
        """A piece of reasoning."""
        self._prose("reasoning").write((piece,))

    def call_start(self, part: CallStart) -> None:
        """A call begins; it is written at once if no other call is open."""
        self._close_prose(phase="commentary")
        tool = self._tools.find(part.name, part.namespace)
        # a name nobody listed goes to the client as a function call: it knows best (Codex runs tools it does not list)
        self._calls[part.index] = SampledCall(
            part, tool or Tool("function", part.name, part.namespace), self._begun
        )
        self._begun += 1
        self._write_calls()

    def call_input(self, part: CallInput) -> None:
        """A piece of a call's input. `KeyError`: the sampler never started that call."""
        call = self._calls[part.index]
        if isinstance(self._open, OpenCall) and self._open.index == part.index:
            self._open.write(part.text)
        elif part.text:
            call.pieces.append(part.text)

    def call_end(self, index: int) -> None:
        """A call is whole."""
        self._calls[index].over = True
        self._write_calls()

    @property
    def calls_client(self) -> bool:
        """Has this segment begun a call that a client must run?"""
        return self.client_calls > 0 or any(call.tool.kind != "hosted" for call in self._calls.values())

    # --- ends --------------------------------------------------------------------------------------------------

    def end_segment(self, *, final: bool) -> None:
        """Close what is open. `final`: the model is done, nothing more will be sampled after this."""
        for call in self._calls.values():
            call.over = True
        self._write_calls()
        self._close_prose("final_answer" if final else "commentary")
        self._calls.clear()

    def begin_segment(self) -> None:
        """Forget what belonged to the last segment."""
        self.client_calls = 0
        self.hosted = []
        self._calls.clear()
        self._offered = ()

    def offer(self, tools: ToolTable) -> None:
        """Know other tools from now on: the client has found some more."""
        self._tools = tools

    def cut(self) -> None:
        """A limit ended the sampling: the open item is done as `incomplete`, held calls are dropped."""
        self.stops_after_item = False  # this is the end already
        if self._open is not None:
            self._done(self._open.close("incomplete"))
        self._calls.clear()
        self.hosted = []

    def _shortest_way(self) -> Way:
        return self.way or OneByOne(self._emit, self._dialect.agent)

    # --- prose -------------------------------------------------------------------------------------------------

    def _prose(self, kind: str) -> "OpenText":
        if not (isinstance(self._open, OpenText) and self._open.kind == kind):
            self.end_segment(final=False)
            self._open = OpenText(kind, self._new_id, self._shortest_way(), len(self.items), self._dialect)
        return self._open

    def _close_prose(self, phase: Phase) -> None:
        if isinstance(self._open, OpenText):
            self._done(self._open.close("completed", phase))

    # --- calls -------------------------------------------------------------------------------------------------

    def _write_calls(self) -> None:
        """Write held calls in order, as far as the one before is over."""
        for index, call in list(self._calls.items()):
            if call.tool.kind == "hosted":
                if call.over:
                    self._take_hosted(index, call)
                continue
            if self._open is None:
                self._open = OpenCall(
                    index,
                    call,
                    self._new_call_id(call),
                    self._new_id,
                    self._emit,
                    self._shortest_way(),
                    len(self.items),
                    self._dialect,
                )
            if not (isinstance(self._open, OpenCall) and self._open.index == index and call.over):
                return
            self.client_calls += 1
            del self._calls[index]
            self._done(self._open.close("completed"))

    def _new_call_id(self, call: SampledCall) -> str:
        """The backend's own id unless the chain has it already (router-for-me/CLIProxyAPI#4219, NousResearch/hermes-agent#111443)."""
        offered = call.start.call_id
        if not offered or offered in self._offered or self._known_call(offered):
            return self._new_id("call")
        self._offered += (offered,)  # the chain learns of it only when the segment is over
        return offered

    def _take_hosted(self, index: int, call: SampledCall) -> None:
        del self._calls[index]
        label = call.tool.namespace or ""
        hosted = HostedCall(self._new_id("mcp"), label, call.tool.name, call.pieces, call.place)
        insort(self.hosted, hosted, key=attrgetter("place"))

    def write_whole(self, item: Item) -> None:
        """The two events of an item that nobody writes piece by piece."""
        self._emit(OutputItemAdded(len(self.items), item))
        self.items.append(item)
        self._emit(OutputItemDone(len(self.items) - 1, item))

    def write_hosted_start(self, call: HostedCall) -> None:
        """The events of a hosted call up to the moment its tool answers."""
        index = len(self.items)
        self._emit(OutputItemAdded(index, self._hosted_item(call, "in_progress", arguments="")))
        self._emit(events.McpCallInProgress(call.item_id, index))
        for piece in call.pieces or [call.arguments]:
            self._emit(events.McpCallArgumentsDelta(call.item_id, index, piece))
        self._emit(events.McpCallArgumentsDone(call.item_id, index, call.arguments))

    def write_hosted_end(self, call: HostedCall, output: str | None, error: str | None) -> None:
        """The events of a hosted call from its answer on."""
        index = len(self.items)
        ended = events.McpCallCompleted if error is None else events.McpCallFailed
        self._emit(ended(call.item_id, index))
        status = "completed" if error is None else "failed"
        self._done(self._hosted_item(call, status, output=output, error=error))

    def _hosted_item(self, call: HostedCall, status: Any, **members: Any) -> McpCall:
        members.setdefault("arguments", call.arguments)
        return McpCall(
            call.item_id, call.label, call.name, status=status, agent=self._dialect.agent, **members
        )

    def _done(self, item: Item) -> None:
        """The item joins `items` before its event is sent: whoever answers the event finds it there."""
        self._open = None
        self.items.append(item)
        self._emit(OutputItemDone(len(self.items) - 1, item))
        # a call is answered before anything else, and the item of a hosted one ends outside of a segment
        if self.stops_after_item and not isinstance(item, (*CALLS, McpCall)):
            raise ItemBoundary
