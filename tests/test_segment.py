"""A segment: parts go to the assembly within the budget, and it ends for one reason only."""

from array import array
from itertools import count

import pytest
import trio
import trio.testing

from engine.assembly import Assembly
from engine.ledger import Ledger, Stage
from engine.open_items import OneByOne
from engine.samplers.base import Appended, CallEnd, CallInput, CallStart, End, Prefilled, Text, Thought
from engine.segment import SHORT_TOKENS, BudgetSpentError, SamplerContractError, SegmentRun
from engine.stages import Tool, ToolTable
from protocol.dialects import APPEND
from protocol.items import FunctionCall, McpCall, Message, text_of

TOOLS = ToolTable({(None, "f"): Tool("function", "f")}, {"label": frozenset({"hosted"})})


class PlainOutbox:
    """Keeps what it is told; the client may be behind."""

    def __init__(self, *, writable: bool = True) -> None:
        self.events, self.acts = [], []
        self.writable = trio.Event()
        if writable:
            self.writable.set()

    def emit(self, event) -> None:
        self.events.append(event)
        self.acts.append("emit")

    def open(self, opening, item_id, output_index, *texts):
        return OneByOne(self.emit, None).open(opening, item_id, output_index, *texts)

    def emit_made(self, make, item_id, output_index, *texts):
        OneByOne(self.emit, None).emit_made(make, item_id, output_index, *texts)

    def flush(self) -> bool:
        self.acts.append("flush")
        return self.writable.is_set()

    async def wait_writable(self) -> None:
        self.acts.append("wait")
        if not self.writable.is_set():
            await self.writable.wait()

    def hook(self, name, members) -> None:
        self.acts.append(name)


def new_id(prefix: str, _count: "list[int]" = [0]) -> str:  # noqa: B006  # one counter for all is the point
    _count[0] += 1
    return f"{prefix}_{_count[0]}"


def prepared(*, budget_tokens=None, one_call=False, outbox=None) -> "tuple[SegmentRun, PlainOutbox]":
    outbox = outbox or PlainOutbox()
    assembly = Assembly(outbox.emit, new_id, APPEND, TOOLS, lambda _: False)
    assembly.begin_segment()
    return SegmentRun(assembly, budget_tokens, one_call), outbox


class Steps:
    """A sampling of one segment, pulled."""

    def __init__(self, steps) -> None:
        self._steps = steps

    def sample(self, _appended):
        return self._steps

    async def aclose(self) -> None:
        raise AssertionError("a segment does not close its sampling")


async def sampled(*steps):
    for step in steps:
        await trio.lowlevel.checkpoint()
        yield step


NEW = Appended((), array("I"))


async def ran(run: SegmentRun, outbox: PlainOutbox, *steps) -> Ledger:
    ledger = Ledger()
    await run.run(Steps(sampled(*steps)), NEW, ledger, outbox)
    return ledger


def said(run: SegmentRun) -> list:
    """Kind and text of each finished item."""
    return [
        (type(item), item.arguments if isinstance(item, FunctionCall | McpCall) else text_of(item.content))
        for item in run.assembly.items
    ]


CALL = (CallStart(0, "f"), CallInput(0, "{}"), CallEnd(0))


async def test_a_segment_is_its_parts_up_to_the_end():
    """Text goes to the assembly, tokens are counted, the end closes the message."""
    run, outbox = prepared()
    ledger = await ran(
        run, outbox, (Prefilled(5, 2),), (Thought("hm", 3),), (Text("Hel", 2), Text("lo")), (End(tokens=1),)
    )
    assert ("hm", "Hello") == tuple(text_of(item.content) for item in run.assembly.items)
    assert (7, 3, 5) == (run.output_tokens, run.reasoning_tokens, run.reused_tokens)
    assert Stage.SAMPLE is ledger.stage


async def test_what_comes_after_the_end_is_not_taken():
    """Parts behind the `End`, in its step or later, are nobody's."""
    run, outbox = prepared()
    await ran(run, outbox, (Text("a"), End(), Text("b")), (Text("c"),))
    assert ([(Message, "a")], 1) == (said(run), run.output_tokens)


async def test_a_sampler_that_says_nothing_of_reuse_leaves_it_open():
    """Without `Prefilled` nothing is claimed."""
    run, outbox = prepared()
    await ran(run, outbox, (End(),))
    assert (None, []) == (run.reused_tokens, said(run))


async def test_each_step_is_flushed_once_after_its_events():
    """However many parts a step has, and nothing waits while the client keeps up."""
    run, outbox = prepared()
    await ran(run, outbox, (Text("a"), Text("b")), (Text("c", SHORT_TOKENS), End()))
    assert 2 == outbox.acts.count("flush")
    assert ("flush", 0) == (outbox.acts[-1], outbox.acts.count("wait"))


async def test_the_last_step_of_a_short_segment_is_left_to_what_follows():
    """One write for it and for `response.done`: whoever runs the segment flushes."""
    run, outbox = prepared()
    await ran(run, outbox, (Text("a"),), (Text("b"), End()))
    assert 1 == outbox.acts.count("flush")
    assert "emit" == outbox.acts[-1]


async def test_a_client_that_is_behind_holds_the_sampling():
    """The next step is asked for only when the client has read."""
    run, outbox = prepared(outbox=PlainOutbox(writable=False))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ran, run, outbox, (Text("a"),), (Text("b"), End()))
        await trio.testing.wait_all_tasks_blocked()
        assert 1 == run.output_tokens
        outbox.writable.set()
    assert [(Message, "ab")] == said(run)


async def test_a_sampler_that_stops_without_an_end_broke_its_promise():
    """An iterator that just ends is a failure."""
    run, outbox = prepared()
    with pytest.raises(SamplerContractError, match="without an End"):
        await ran(run, outbox, (Text("a"),))


async def test_a_length_stop_of_the_model_is_a_spent_budget():
    """The model's own limit ends the segment as the request's would."""
    run, outbox = prepared()
    with pytest.raises(BudgetSpentError):
        await ran(run, outbox, (Text("a"), End("length")))
    assert 1 == run.output_tokens


@pytest.mark.parametrize(
    ("budget_tokens", "spent", "text"), [(0, 0, None), (1, 1, "a"), (2, 1, "a"), (3, 3, "abb")]
)
async def test_no_part_goes_beyond_the_budget(budget_tokens, spent, text):
    """A part that no longer fits is not taken, in whole or in half; the counts are those of what was."""
    run, outbox = prepared(budget_tokens=budget_tokens)
    with pytest.raises(BudgetSpentError):
        await ran(run, outbox, (Text("a"),), (Text("bb", 2),), (Text("c"),), (End(),))
    run.assembly.cut()
    assert (spent, text) == (run.output_tokens, said(run)[0][1] if said(run) else None)


async def test_a_budget_that_is_used_to_the_last_token_is_enough():
    """What fits exactly ends as usual, and parts without tokens cost nothing."""
    run, outbox = prepared(budget_tokens=3)
    await ran(run, outbox, (Prefilled(1, 1), Text("a"), Text("bb", 2), Text("", 0)), (End(),))
    assert (3, "abb") == (run.output_tokens, said(run)[0][1])


async def test_calls_and_thoughts_spend_the_budget_too():
    """Every sampled token counts, whatever it became."""
    run, outbox = prepared(budget_tokens=4)
    with pytest.raises(BudgetSpentError):
        await ran(run, outbox, (Thought("x", 2), CallStart(0, "f"), CallInput(0, "{}"), CallEnd(0, 1)))
    assert (4, 2) == (run.output_tokens, run.reasoning_tokens)


async def test_several_calls_are_one_segment():
    """Unless only one is allowed, the segment goes on after a call."""
    run, outbox = prepared()
    await ran(run, outbox, CALL, (CallStart(1, "f"), CallEnd(1), End("tool_calls")))
    assert 2 == run.assembly.client_calls


async def test_with_one_call_the_segment_ends_with_it():
    """What the model would have said after its call is not sampled."""
    run, outbox = prepared(one_call=True)
    await ran(run, outbox, (Text("so"),), (*CALL, Text("more")), (Text("never"), End()))
    assert [(Message, "so"), (FunctionCall, "{}")] == said(run)


@pytest.mark.parametrize(
    "steps",
    [
        [
            (
                CallStart(0, "f"),
                CallStart(1, "f"),
                CallInput(1, "1"),
                CallInput(0, "{}"),
                CallEnd(1),
                CallEnd(0),
            )
        ],
        [(CallStart(0, "f"), CallInput(0, "{}"), CallStart(1, "f"), CallInput(1, "1"), End())],
        [(CallStart(0, "f"), CallInput(0, "{}")), (Thought("x"), CallStart(1, "f"), CallEnd(1))],
    ],
    ids=["alternating", "never ended", "ended by prose"],
)
async def test_with_one_call_a_second_is_passed_over_however_it_comes(steps):
    """Alternating with the first, behind one that was never ended, or after prose: one call is written."""
    run, outbox = prepared(one_call=True)
    await ran(run, outbox, *steps, (End(),))
    assert ([(FunctionCall, "{}")], 1) == (
        [one for one in said(run) if one[0] is FunctionCall],
        run.assembly.client_calls,
    )


async def test_hosted_calls_are_not_the_one_call():
    """What the server runs itself may come before the client's one call."""
    run, outbox = prepared(one_call=True)
    hosted = (CallStart(0, "hosted"), CallEnd(0), CallStart(1, "hosted"), CallEnd(1))
    await ran(run, outbox, hosted, (CallStart(2, "f"), CallEnd(2)), (End(),))
    assert (2, 1) == (len(run.assembly.hosted), run.assembly.client_calls)


async def test_what_the_sampler_raises_comes_out():
    """A failure inside the sampler is the caller's to see."""

    async def failing():
        yield (Text("a"),)
        raise ZeroDivisionError("by design")

    run, outbox = prepared()
    with pytest.raises(ZeroDivisionError, match="by design"):
        await run.run(Steps(failing()), NEW, Ledger(), outbox)
    assert 1 == run.output_tokens


async def test_each_step_is_in_the_ledger():
    """What takes the steps, and what sends them, is told apart from the sampler, step by step; nothing is lost or new."""
    run, outbox = prepared()
    ledger = Ledger(count().__next__)  # a nanosecond passes between any two looks at the clock
    steps = [(Text("a"),), (Text("b"), Text("c")), (Text("d", SHORT_TOKENS), End())]
    await run.run(Steps(sampled(*steps)), NEW, ledger, outbox)
    report = ledger.report()
    assert (3, 3) == (report.stages["encode"], report.stages["send"])
    assert report.wall_ns == sum(report.stages.values())
    assert Stage.SAMPLE is ledger.stage


async def test_the_time_of_the_sampler_is_the_samplers(autojump_clock):
    """Waiting for the sampler and waiting for the client are told apart."""

    async def slow():
        await trio.sleep(3)
        yield (Text("a", SHORT_TOKENS), End())

    run, outbox = prepared(outbox=PlainOutbox(writable=False))
    ledger = Ledger(lambda: int(trio.current_time() * 1000))

    async def reader() -> None:
        await trio.sleep(5)
        outbox.writable.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader)
        await run.run(Steps(slow()), NEW, ledger, outbox)
    stages = ledger.report().stages
    assert (3000, 2000) == (stages["sample"], stages["send"])
