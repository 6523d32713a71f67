"""What a client and the engine can do together, as a table: a script for the sampler, a program for the client.

`SCENARIOS` is read by two test files: with exact outcomes, and with everything cancelled or cut at every step.
A program is the same in both forms; `Talk` knows how each says it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from engine.config import DEFAULT_LIMITS, Limits
from engine.engine import Engine, RolloutReport
from engine.hosted import HostedTool
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Prompt, Thought
from engine.samplers.scripted import END, Raise, Script, Scripted, Silence, Stall, call, say
from engine.testing import FaultPlan, MemoryTrace, RawClient, Served, serving, simulated_engine
from engine.transport import HandshakeFailed, TransportClosed
from protocol import trace
from protocol.invariants import Checker, Violation

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "patch"}
NAMESPACE = {"type": "namespace", "name": "git", "description": "", "tools": [FUNCTION | {"name": "log"}]}
SEARCH = {"type": "tool_search", "execution": "client"}
FOUND = {"type": "custom", "name": "found"}
HOSTED = {"type": "mcp", "server_label": "lib"}
MULTI_AGENT = {"multi_agent": {"enabled": True}}
CALLS = {"function_call", "custom_tool_call", "tool_search_call"}
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
LATER_SECONDS = 1.0
"""Long enough in virtual time for the engine to have done all it can do."""


# --- the client --------------------------------------------------------------------------------------------------


class Talk:
    """One connection of a client that speaks one form; keeps every frame it got."""

    def __init__(self, raw: RawClient, form: str, served: Served) -> None:
        self.raw = raw
        self.form = form
        self.served = served
        self.frames: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.response_ids: list[str] = []
        self.homes: list[tuple[str, str | None]] = []
        """Of each call: its response and lane."""
        self._current: dict[str | None, str] = {}

    def create(self, text: Any = "go", **members: Any) -> None:
        """Ask for a rollout."""
        tools = [FUNCTION, CUSTOM, NAMESPACE, HOSTED]
        more = MULTI_AGENT if self.form == "inject" else {}
        self.raw.send(
            {"type": "response.create", "model": "m", "input": text, "tools": tools, **more, **members}
        )

    def put(self, *items: Mapping[str, Any], response_id: str | None = None, **members: Any) -> None:
        """Append or inject items."""
        if self.form == "append":
            self.raw.send({"type": "response.append", "input": list(items), **members})
        else:
            response_id = response_id or self.response_ids[-1]
            self.raw.send({"type": "response.inject", "response_id": response_id, "input": list(items)})

    def answer(self, *places: int, output: str = "ok", **members: Any) -> None:
        """Send the outputs of some of the calls seen so far, by their places among them, in one frame."""
        self.put(*(self.output(place, output) for place in places), **members)

    def output(self, place: int, output: str = "ok") -> dict[str, Any]:
        """The output of a call."""
        made = self.calls[place]
        if made["type"] == "tool_search_call":
            return {"type": "tool_search_output", "call_id": made["call_id"], "tools": [FOUND]}
        return {"type": f"{made['type']}_output", "call_id": made["call_id"], "output": output}

    async def next(self) -> dict[str, Any]:
        """The next frame."""
        frame = await self.raw.receive()
        self.frames.append(frame)
        if frame["type"] == "response.created":
            self._current[frame.get("stream_id")] = frame["response"]["id"]
            self.response_ids.append(frame["response"]["id"])
        if frame["type"] == "response.output_item.done" and frame["item"]["type"] in CALLS:
            self.calls.append(frame["item"])
            self.homes.append((self._current[frame.get("stream_id")], frame.get("stream_id")))
        return frame

    async def until(self, *types: str) -> dict[str, Any]:
        """Read up to a frame of one of these types."""
        while (frame := await self.next())["type"] not in types:
            pass
        return frame

    async def until_calls(self, count: int) -> None:
        """Read until so many calls have been made in all."""
        while len(self.calls) < count:
            await self.next()

    async def until_suspended(self, count: int) -> None:
        """Read until the rollout waits, with so many calls made in all. The inject form does not say when: wait a while."""
        if self.form == "append":
            await self.until("response.done")
        else:
            await self.until_calls(count)
            await trio.sleep(LATER_SECONDS)

    async def until_ended(self) -> dict[str, Any]:
        """Read up to the terminal event."""
        return await self.until(*TERMINAL)


Program = Callable[[Talk], Awaitable[None]]


# --- how a scenario is run ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Scenario:
    """One row."""

    script: Script | Callable[[Prompt], Script]
    program: Program
    forms: Sequence[str] = ("append", "inject")
    limits: Limits = DEFAULT_LIMITS
    hosted: Sequence[HostedTool] = ()


@attrs.define
class Outcome:
    """What a run left behind."""

    reports: list[RolloutReport] = attrs.field(factory=list)
    frames: list[dict[str, Any]] = attrs.field(factory=list)
    lines: list[bytes] = attrs.field(factory=list)
    engine: Engine | None = None
    sampler: Any = None
    tasks_left: int = 0


def ignore(_served: Served, _stream: Any) -> None:
    """Nothing is to be armed."""


async def run_scenario(
    scenario: Scenario,
    form: str,
    outcome: Outcome,
    on_open: Callable[[Served, Any], None] = ignore,
    plan: FaultPlan | None = None,
) -> None:
    """Run it once in the simulation; whatever ends the connection early ends the program quietly."""
    outcome.sampler = Scripted(scenario.script)
    outcome.engine = engine = simulated_engine(
        outcome.sampler,
        seed=0,
        limits=scenario.limits,
        hosted_tools=scenario.hosted,
        on_report=outcome.reports.append,
    )
    before = trio.lowlevel.current_statistics().tasks_living
    recorded = MemoryTrace()
    async with serving(engine, trace=recorded) as served:
        try:
            stream = await served.open_stream(plan)
            on_open(served, stream)
            async with served.connect_raw(append=form == "append", stream=stream) as raw:
                talk = Talk(raw, form, served)
                outcome.frames = talk.frames
                await scenario.program(talk)
        except (TransportClosed, HandshakeFailed, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        await wait_idle(served)
    outcome.lines = recorded.lines()
    outcome.tasks_left = trio.lowlevel.current_statistics().tasks_living - before


async def wait_idle(served: Served) -> None:
    """Let the server see that the client is gone."""
    with trio.move_on_after(3600):
        while served.server.statistics().connections:  # noqa: ASYNC110  # nothing tells an outsider of a connection's end
            await trio.sleep(LATER_SECONDS)


def violations_in(header: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """What the checker says of one trace of ours."""
    checker = Checker(header, profile="this-engine")
    found = [violation for record in records for violation in checker.feed(record)]
    return [*found, *checker.finish()]


def violations_of(outcome: Outcome) -> list[Violation]:
    """What the checker says of all traces of a run."""
    return [one for each in trace.read(outcome.lines) for one in violations_in(*each)]


def findings(outcome: Outcome, *, may_be_empty: bool = False) -> list[str]:
    """What the checker and the leak checks say of a run."""
    found = [f"{one.rule} {one.conn} {one}" for one in violations_of(outcome)]
    if not may_be_empty and b'"response.created"' not in b"".join(outcome.lines):
        found.append("no response in the traces")
    engine, slots = outcome.engine, outcome.engine.slots.statistics()
    if (slots.free, slots.held, slots.waiting_new, slots.waiting_resumed) != (
        engine.limits.sampler_slots,
        0,
        0,
        0,
    ):
        found.append(f"slots left: {slots}")
    if engine.open_rollouts:
        found.append(f"{engine.open_rollouts} rollouts left open")
    if engine.open_by_owner:
        found.append(f"rollouts of {list(engine.open_by_owner)} left open")
    if outcome.sampler.open_samplings:
        found.append(f"{outcome.sampler.open_samplings} samplings left open")
    if outcome.tasks_left:
        found.append(f"{outcome.tasks_left} tasks left")
    for report in outcome.reports:
        counts = [
            report.hooks.get(name, 0) for name in ("pre_inference", "post_inference", "account", "persist")
        ]
        if counts != [1, 1, 1, 1]:
            found.append(f"{report.response_id}: pre, post, account, persist ran {counts} times")
    return found


# --- scripts and programs ----------------------------------------------------------------------------------------

HELLO = [*say("Hello."), END]
ONE = [[call("f"), END], HELLO]
TWO = [[(*call("f"), *call("f", index=1)), END], HELLO]


TWO_ROUNDS = [[call("f"), END], [call("f"), END], HELLO]


async def run_tool(x: int = 1) -> str:
    """A hosted tool that takes a while."""
    await trio.sleep(0.5)
    return f"hosted {x}"


LIB = (HostedTool("lib", "look", run_tool),)
HOSTED_CALL = call("look", '{"x": 7}', namespace="lib")


async def just_ask(talk: Talk) -> None:
    talk.create()
    await talk.until_ended()


async def answer_one(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)
    talk.answer(0)
    await talk.until_ended()


async def answer_two_at_once(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(2)
    talk.answer(0, 1)
    await talk.until_ended()


async def answer_two_reversed(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(2)
    talk.answer(1, 0)
    await talk.until_ended()


async def answer_two_in_two_frames(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(2)
    talk.answer(1)
    await trio.sleep(LATER_SECONDS)
    talk.answer(0)
    await talk.until_ended()


async def search(talk: Talk) -> None:
    talk.create(tools=[SEARCH])
    await talk.until_suspended(1)
    talk.answer(0)
    await talk.until_suspended(2)
    talk.answer(1)
    await talk.until_ended()


async def answer_early(talk: Talk) -> None:
    talk.create()
    await talk.until_calls(1)
    talk.answer(0)
    await talk.until_calls(2)
    talk.answer(1)
    await talk.until_ended()


def ask(**members: Any) -> Program:
    """A program that only asks, with these members."""

    async def program(talk: Talk) -> None:
        talk.create(**members)
        await talk.until_ended()

    return program


async def wait_too_long(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)
    await talk.until_ended()
    talk.answer(0)
    await talk.until("error", "response.inject.failed")


async def create_while_suspended(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)
    talk.create("never mind", tool_choice="none")
    await talk.until_ended()


async def create_before_done(talk: Talk) -> None:
    """The create is there when the call has been announced and the pause has not begun."""
    talk.create()
    await talk.until_calls(1)
    talk.create("never mind", tool_choice="none")
    await talk.until_ended()


async def create_with_create(talk: Talk) -> None:
    """The second create is there before the first has been sampled."""
    talk.create()
    talk.create("never mind", tool_choice="none")
    await talk.until_ended()


def second_says_hello(prompt: Prompt) -> Script:
    """A call for the first, an answer for the second."""
    return [HELLO, HELLO] if prompt.tool_choice == "none" else ONE


def second_says_hello_slowly(prompt: Prompt) -> Script:
    """The same, and time passes between the call and the pause."""
    return [HELLO, HELLO] if prompt.tool_choice == "none" else [[call("f"), Stall(5.0), END], HELLO]


async def continue_completed(talk: Talk) -> None:
    talk.create(tool_choice="none")
    await talk.until_ended()
    talk.create("and then?", previous_response_id=talk.response_ids[0], tool_choice="none")
    await talk.until_ended()


async def continue_abandoned(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)
    talk.create([talk.output(0)], previous_response_id=talk.response_ids[0], tool_choice="none")
    await talk.until_ended()


async def send_message_too(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)
    talk.put({"type": "message", "role": "user", "content": "hurry"}, talk.output(0))
    await talk.until_ended()


async def send_items_back(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)
    said = [frame["item"] for frame in talk.frames if frame["type"] == "response.output_item.done"]
    talk.put(*said, talk.output(0))
    await talk.until_ended()


async def drain_while_suspended(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)
    talk.served.server.drain()
    while True:
        await talk.next()


async def drain_while_sampling(talk: Talk) -> None:
    talk.create()
    await talk.until("response.output_text.delta")
    talk.served.server.drain()
    while True:
        await talk.next()


async def two_lanes(talk: Talk) -> None:
    talk.create(stream_id="a")
    await talk.until_suspended(1)
    talk.create(stream_id="b")
    await talk.until_suspended(2)
    for lane, place in (("b", 1), ("a", 0), ("b", 2), ("a", 3)):
        made = len(talk.calls)
        response_id = talk.response_ids["ab".index(lane)]
        talk.answer(place, response_id=response_id, **({"stream_id": lane} if talk.form == "append" else {}))
        if place < 2:
            await talk.until_suspended(made + 1)
        else:
            await talk.until_ended()


async def hang_up_while_suspended(talk: Talk) -> None:
    talk.create()
    await talk.until_suspended(1)


async def hang_up_while_sampling(talk: Talk) -> None:
    talk.create()
    await talk.until("response.output_text.delta")


SCENARIOS: Mapping[str, Scenario] = {
    "plain text": Scenario(script=[HELLO], program=just_ask),
    "one call": Scenario(script=ONE, program=answer_one),
    "text, then a call": Scenario(
        script=[[*say("Let me see."), call("f", '{"a":1}'), END], HELLO], program=answer_one
    ),
    "calls answered together": Scenario(script=TWO, program=answer_two_at_once),
    "calls answered in reverse": Scenario(script=TWO, program=answer_two_reversed),
    "calls answered in two frames": Scenario(script=TWO, program=answer_two_in_two_frames),
    "calls answered early": Scenario(
        script=[[call("f"), Stall(5.0), call("f", index=1), Stall(5.0), END], HELLO], program=answer_early
    ),
    "interleaved calls": Scenario(
        script=[
            [
                (CallStart(0, "f"), CallStart(1, "f")),
                (CallInput(1, '{"b":'), CallInput(0, '{"a":')),
                (CallInput(0, "1}"), CallInput(1, "2}"), CallEnd(1), CallEnd(0)),
                END,
            ],
            HELLO,
        ],
        program=answer_two_at_once,
    ),
    "reasoning": Scenario(script=[[(Thought("I "),), (Thought("think."),), *HELLO]], program=just_ask),
    "custom tool": Scenario(script=[[call("patch", "*** Begin"), END], HELLO], program=answer_one),
    "search for tools": Scenario(
        script=[[call("tool_search", '{"query":"x"}'), END], [call("found", "raw"), END], HELLO],
        program=search,
    ),
    "namespaced tool": Scenario(script=[[call("log", namespace="git"), END], HELLO], program=answer_one),
    "hosted tool": Scenario(script=[[HOSTED_CALL, END], HELLO], program=just_ask, hosted=LIB),
    "hosted and client tool": Scenario(
        script=[[HOSTED_CALL, call("f", index=1), END], HELLO], program=answer_one, hosted=LIB
    ),
    "too many hosted calls": Scenario(
        script=[[HOSTED_CALL, END], [HOSTED_CALL, END], HELLO], program=ask(max_tool_calls=1), hosted=LIB
    ),
    "budget spent in text": Scenario(
        script=[[*say("A long answer, too long.", step_characters=4), END]], program=ask(max_output_tokens=3)
    ),
    "budget spent in arguments": Scenario(
        script=[[(CallStart(0, "f"),), *((CallInput(0, "[1,"),) for _ in range(9)), END]],
        program=ask(max_output_tokens=4),
    ),
    "the model's own limit": Scenario(script=[[*say("So"), (End("length"),)]], program=just_ask),
    "sampler fails at once": Scenario(script=[[Raise(RuntimeError("no GPU"))]], program=just_ask),
    "sampler fails in an item": Scenario(
        script=[[*say("Hello."), Raise(RuntimeError("gone"))]], program=just_ask
    ),
    "sampler ends silently": Scenario(script=[[*say("Hello."), Silence()]], program=just_ask),
    "nobody answers": Scenario(script=ONE, program=wait_too_long),
    "abandoned by a create": Scenario(script=second_says_hello, program=create_while_suspended),
    "create before the pause": Scenario(script=second_says_hello_slowly, program=create_before_done),
    "create follows a create": Scenario(script=second_says_hello, program=create_with_create),
    "continued": Scenario(script=second_says_hello, program=continue_completed),
    "continued where it waited": Scenario(script=second_says_hello, program=continue_abandoned),
    "message beside an output": Scenario(script=ONE, program=send_message_too, forms=("append",)),
    "items sent back": Scenario(
        script=[[(Thought("hm"),), *say("Wait."), call("f"), END], HELLO],
        program=send_items_back,
        forms=("append",),
    ),
    "drained while suspended": Scenario(script=ONE, program=drain_while_suspended),
    "drained while sampling to a call": Scenario(
        script=[[*say("Wait."), Stall(5.0), call("f"), END], HELLO], program=drain_while_sampling
    ),
    "drained while sampling to the end": Scenario(
        script=[[*say("Wait."), Stall(5.0), *HELLO]], program=drain_while_sampling
    ),
    "drained for too long": Scenario(
        script=[[*say("Wait."), Stall(500.0), *HELLO]], program=drain_while_sampling
    ),
    "two lanes": Scenario(script=TWO_ROUNDS, program=two_lanes),
    "client leaves a suspended rollout": Scenario(script=ONE, program=hang_up_while_suspended),
    "client leaves a sampling rollout": Scenario(
        script=[[*say("Hello there, you."), Stall(60.0), END]], program=hang_up_while_sampling
    ),
}

CASES = [(name, form) for name, scenario in SCENARIOS.items() for form in scenario.forms]
