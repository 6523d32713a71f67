"""Whatever a client does wrong gets its typed answer, changes nothing, and loses nothing.

Each row is sent to a rollout that waits for two calls, one of a function and one of a custom tool.
After the refusal the pending calls are still the same two, and their outputs complete it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import orjson
import pytest
import trio

from engine.config import Limits
from engine.models import ModelEntry, ModelTable
from engine.samplers.base import Prompt
from engine.samplers.scripted import END, Script, Scripted, Stall, call, say
from engine.testing import MemoryTrace, serving, simulate, simulated_engine
from tests.scenarios import CUSTOM, FUNCTION, MULTI_AGENT, TERMINAL, Outcome, Talk, findings, wait_idle
from tests.wire import TEXT, WirePeer, client_frame

INVALID: Final = "invalid_request_error"
SCRIPT: Final[Script] = [[call("f"), call("patch", "*** Begin", index=1), END], [*say("Done."), END]]
SLOW: Final[Script] = [
    [*say("Wait."), Stall(10.0), call("f"), call("patch", index=1), END],
    [*say("Done."), END],
]
LIMITS: Final = Limits(max_message_bytes=4 * 1024 * 1024, max_lanes=2, max_queued_creates=2)
BINARY: Final = 0x2
NOBODY: Final = {"type": "function_call_output", "call_id": "call_nobody", "output": "?"}
MESSAGE: Final = {"type": "message", "role": "user", "content": "hurry"}
DEEP: Final = '{"type":"response.append","input":' + "[" * 100_000 + "]" * 100_000 + "}"


@attrs.frozen
class Refused:
    """An error frame, but for its values that a run makes up: `{r}` is the response, `{0}` and `{1}` its calls."""

    code: str | None
    message: str
    param: str | None = None
    status: int = 400
    type: str = INVALID


def batch(*members: Any) -> Callable[[Talk], Any]:
    """Outputs or other items as one append or inject; a number stands for the output of that call."""

    def frame(talk: Talk) -> Any:
        items = [talk.output(member) if isinstance(member, int) else member for member in members]
        if talk.form == "append":
            return {"type": "response.append", "input": items}
        return {"type": "response.inject", "response_id": talk.response_ids[-1], "input": items}

    return frame


def wrong_kind(talk: Talk) -> Any:
    """A function's output for the custom tool's call."""
    return batch({**talk.output(1), "type": "function_call_output"})(talk)


def exactly(frame: Any) -> Callable[[Talk], Any]:
    """A frame that needs no values of the run."""
    return lambda _talk: frame


def create(**members: Any) -> Callable[[Talk], Any]:
    """A create on a lane of its own, so that it abandons nothing."""
    return exactly({"type": "response.create", "model": "m", "input": "go", "stream_id": "b", **members})


NOT_JSON = Refused("invalid_json", "The message is not a JSON object.")
EMPTY = Refused("invalid_input", "'input' must be a non-empty list of items.", "input")
LONG_ID = Refused("invalid_value", "Invalid value for 'input[0].call_id'.", "input[0].call_id")

OUTPUTS: Mapping[str, tuple[Callable[[Talk], Any], Refused]] = {
    "unknown call": (
        batch(NOBODY),
        Refused("invalid_input", "Tool call 'call_nobody' is not pending on response '{r}'.", "input"),
    ),
    "wrong kind": (
        wrong_kind,
        Refused("invalid_input", "Tool call '{1}' is not pending on response '{r}'.", "input"),
    ),
    "twice in a batch": (
        batch(0, 0),
        Refused("invalid_input", "Tool call '{0}' already has an output.", "input"),
    ),
    "one bad member in a batch": (
        batch(0, 1, NOBODY),
        Refused("invalid_input", "Tool call 'call_nobody' is not pending on response '{r}'.", "input"),
    ),
    "an item that may not come": (
        batch(0, {"type": "function_call", "call_id": "call_mine", "name": "f", "arguments": "{}"}),
        Refused("invalid_input", "Item of type 'function_call' cannot be {verb}.", "input"),
    ),
    "an unknown kind of item": (
        batch({"type": "telepathy", "thought": "?"}),
        Refused("invalid_input", "Item of type 'telepathy' cannot be {verb}.", "input"),
    ),
}
"""Refused by the rollout: an `error` frame in the append form, `response.inject.failed` in the other."""

FRAMES: Mapping[str, tuple[Callable[[Talk], Any], Refused]] = {
    "malformed JSON": (exactly('{"type":'), NOT_JSON),
    "a list": (exactly("[]"), NOT_JSON),
    "NaN": (exactly('{"type":"response.create","temperature":NaN}'), NOT_JSON),
    "infinity": (exactly('{"type":"response.create","temperature":1e999}'), NOT_JSON),
    "nested too deeply": (exactly(DEEP), NOT_JSON),
    "a lone surrogate": (exactly('{"type":"response.append","input":[{"output":"\\ud800"}]}'), NOT_JSON),
    "no type": (exactly("{}"), Refused("invalid_event", "The event has no 'type'.", "type")),
    "type is a number": (exactly('{"type":7}'), Refused("invalid_event", "The event has no 'type'.", "type")),
    "unknown type": (
        exactly({"type": "response.cancel"}),
        Refused("unsupported_event", "Unsupported event type 'response.cancel'.", "type"),
    ),
    "a type of a megabyte": (
        exactly({"type": "x" * 1_000_000}),
        Refused("unsupported_event", f"Unsupported event type '{'x' * 64}'.", "type"),
    ),
    "empty input": (batch(), EMPTY),
    "input is no list": (lambda talk: {**batch()(talk), "input": "ok"}, EMPTY),
    "input of no objects": (batch("ok"), EMPTY),
    "output is a number": (
        batch({"type": "function_call_output", "call_id": "c", "output": 7}),
        Refused(
            "invalid_type",
            "Invalid type for 'input[0].output': expected a string or a list of content parts.",
            "input[0].output",
        ),
    ),
    "no call id": (
        batch({"type": "function_call_output", "output": "ok"}),
        Refused(
            "missing_required_parameter",
            "Missing required parameter: 'input[0].call_id'.",
            "input[0].call_id",
        ),
    ),
    "a call id of a megabyte": (batch({**NOBODY, "call_id": "c" * 1_000_000}), LONG_ID),
    "an empty call id": (batch({**NOBODY, "call_id": ""}), LONG_ID),
    "a bad lane name": (
        create(stream_id="no spaces"),
        Refused(
            "invalid_stream_id",
            "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain "
            "letters, numbers, underscores, hyphens, and periods.",
            "stream_id",
        ),
    ),
    "too many lanes": (
        create(stream_id="c"),
        Refused(
            "websocket_stream_limit_reached",
            "This WebSocket connection has reached its maximum number of distinct stream IDs (2). "
            "Reuse an existing stream_id or open a new WebSocket connection.",
            "stream_id",
        ),
    ),
    "unknown model": (
        create(model="gone"),
        Refused("model_not_found", "The model 'gone' does not exist. Known here: m.", "model", 404),
    ),
    "no model": (
        create(model=None),
        Refused("missing_required_parameter", "Missing required parameter: 'model'.", "model"),
    ),
    "unknown parent": (
        create(previous_response_id="resp_gone"),
        Refused(
            "previous_response_not_found",
            "Previous response with id 'resp_gone' not found.",
            "previous_response_id",
        ),
    ),
    "wrong type of a member": (
        create(max_output_tokens="many"),
        Refused(
            "invalid_type", "Invalid type for 'max_output_tokens': expected an integer.", "max_output_tokens"
        ),
    ),
    "out of range": (
        create(temperature=3),
        Refused("invalid_value", "Invalid value for 'temperature'.", "temperature"),
    ),
    "not supported": (
        create(background=True),
        Refused("unsupported_parameter", "Unsupported parameter: 'background'.", "background"),
    ),
    "a tool choice that is no tool": (
        create(tool_choice={"type": "function", "name": "g"}),
        Refused("invalid_value", "Tool choice 'g' not found in 'tools' parameter.", "tool_choice"),
    ),
    "a schema that is none": (
        create(tools=[FUNCTION, {**FUNCTION, "name": "g", "parameters": {"type": "nonsense"}}]),
        Refused(
            "invalid_value",
            "Invalid value for 'tools[1].parameters': 'anyOf' fails at '.type'.",
            "tools[1].parameters",
        ),
    ),
    "an output without its call": (
        create(input=[NOBODY]),
        Refused(None, "No tool call found for function call output with call_id call_nobody.", "input"),
    ),
}
"""Refused before any rollout is asked: an `error` frame in both forms."""

CASES = [(name, form) for name in (*OUTPUTS, *FRAMES) for form in ("append", "inject")]


async def converse(
    program: Callable[[Talk], Any],
    form: str,
    outcome: Outcome,
    *,
    script: Any = SCRIPT,
    limits: Limits = LIMITS,
) -> None:
    """Run a program against the engine, its trace and remains as for a scenario."""
    outcome.sampler = Scripted(script)
    models = ModelTable((ModelEntry(name="m"),))
    outcome.engine = simulated_engine(
        outcome.sampler, seed=1, limits=limits, models=models, on_report=outcome.reports.append
    )
    recorded = MemoryTrace()
    async with serving(outcome.engine, trace=recorded) as served:
        async with served.connect_raw(append=form == "append") as raw:
            talk = Talk(raw, form, served)
            outcome.frames = talk.frames
            await program(talk)
        await wait_idle(served)
    outcome.lines = recorded.lines()


def run(program: Callable[[Talk], Any], form: str, **options: Any) -> Outcome:
    outcome = Outcome()
    simulate(lambda: converse(program, form, outcome, **options), seed=1)
    assert findings(outcome) == []
    return outcome


def answer_of(frame: Mapping[str, Any]) -> Refused:
    error = frame["error"]
    return Refused(error["code"], error["message"], error["param"], frame["status"], error["type"])


def filled(refused: Refused, talk: Talk) -> Refused:
    verb = "appended" if talk.form == "append" else "injected"
    calls = [made["call_id"] for made in talk.calls]
    message = refused.message.format(*calls, r=talk.response_ids[-1], verb=verb)
    return attrs.evolve(refused, message=message)


async def suspend(talk: Talk) -> None:
    """A rollout that waits for its two calls."""
    talk.create(tools=[FUNCTION, CUSTOM])
    await talk.until_suspended(2)


async def refusal_of(talk: Talk, frame: Any, refused: Refused, *, by_rollout: bool) -> Mapping[str, Any]:
    """Send what is refused and check the answer; by the rollout itself, the inject form answers in its own way."""
    talk.raw.send(frame)
    answer = await talk.next()
    expected = filled(refused, talk)
    if by_rollout and talk.form == "inject":
        assert answer["type"] == "response.inject.failed"
        assert answer["error"] == {"code": expected.code, "message": expected.message}
        assert answer["input"] == frame["input"]
    else:
        assert answer["type"] == "error"
        assert answer_of(answer) == expected
    return answer


async def complete(talk: Talk) -> None:
    """The rollout is as it was: it still waits for exactly these two calls, and takes their outputs."""
    assert sum(each.suspended for each in talk.served.server.statistics().connections) == 1
    talk.answer(1, 0)
    ended = await talk.until(*TERMINAL)
    assert ended["response"]["status"] == "completed"
    kinds = [item["type"] for item in ended["response"]["output"]]
    assert [kind for kind in kinds if kind != "message"] == ["function_call", "custom_tool_call"]
    assert kinds[-1] == "message"


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_refusal_has_its_type_and_changes_nothing(name: str, form: str) -> None:
    """Code, status, param and words are the catalogue's; the waiting rollout is completed by the right outputs."""
    make_frame, refused = (OUTPUTS | FRAMES)[name]

    async def program(talk: Talk) -> None:
        for lane in ("a", "b"):
            talk.raw.send(create(stream_id=lane, generate=False)(talk))
            await talk.until(*TERMINAL)
        await suspend(talk)
        frame = make_frame(talk)
        answer = await refusal_of(talk, frame, refused, by_rollout=name in OUTPUTS)
        if isinstance(frame, dict) and refused.code != "invalid_stream_id":
            assert answer.get("stream_id") == frame.get("stream_id")
        await complete(talk)

    run(program, form)


# --- what needs another situation --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["append", "inject"])
def test_the_first_output_wins(form: str) -> None:
    """A second output for an answered call is refused, alone or beside a good one, and the partial answer stays."""
    refused = Refused("invalid_input", "Tool call '{0}' already has an output.", "input")

    async def program(talk: Talk) -> None:
        await suspend(talk)
        talk.answer(0)
        if form == "inject":
            await talk.until("response.inject.created")
        for members in ((0,), (1, 0)):
            await refusal_of(talk, batch(*members)(talk), refused, by_rollout=True)
        talk.answer(1)
        assert (await talk.until(*TERMINAL))["response"]["status"] == "completed"

    outcome = run(program, form)

    assert outcome.reports[0].hooks["accepted"] == 2


@pytest.mark.parametrize("form", ["append", "inject"])
def test_input_while_sampling_is_refused_unless_it_answers_a_call(form: str) -> None:
    """Before the call is announced nothing is pending; from then on its output is welcome, before the pause too."""
    refused = Refused("invalid_input", "Tool call 'call_nobody' is not pending on response '{r}'.", "input")

    async def program(talk: Talk) -> None:
        talk.create()
        await talk.until("response.output_text.delta")
        await refusal_of(talk, batch(NOBODY)(talk), refused, by_rollout=True)
        await talk.until_suspended(2)
        await complete(talk)

    run(program, form, script=SLOW)


def test_an_append_with_nothing_open_is_refused() -> None:
    """Before the first create, and after the end; a later create works."""
    refused = Refused(
        "no_response_in_progress", "No response is waiting for input on this connection.", "input"
    )

    async def program(talk: Talk) -> None:
        talk.response_ids.append("none")
        await refusal_of(talk, batch(NOBODY)(talk), refused, by_rollout=True)
        await suspend(talk)
        await complete(talk)
        await refusal_of(talk, batch(0)(talk), refused, by_rollout=True)
        talk.calls.clear()
        await suspend(talk)
        await complete(talk)

    run(program, "append")


def test_an_append_that_names_another_response_is_refused() -> None:
    """A response id is not needed, but it must be right."""
    refused = Refused("response_not_found", "Response 'resp_other' not found.", "response_id")

    async def program(talk: Talk) -> None:
        await suspend(talk)
        await refusal_of(talk, {**batch(0)(talk), "response_id": "resp_other"}, refused, by_rollout=True)
        await complete(talk)

    run(program, "append")


def test_an_inject_is_refused_by_the_name_of_its_response() -> None:
    """Ended ones have completed already, and number on; unknown ones are not found, with number 0."""

    async def program(talk: Talk) -> None:
        await suspend(talk)
        unknown = {**batch(0)(talk), "response_id": "resp_other"}
        talk.raw.send(unknown)
        answer = await talk.next()
        assert answer["error"] == {
            "code": "response_not_found",
            "message": "Response 'resp_other' not found.",
        }
        assert (answer["sequence_number"], answer["input"]) == (0, unknown["input"])
        await complete(talk)
        last = talk.frames[-1]["sequence_number"]
        refused = Refused("response_already_completed", "Response '{r}' has already completed.")
        answer = await refusal_of(talk, batch(0)(talk), refused, by_rollout=True)
        assert answer["sequence_number"] == last + 1

    run(program, "inject")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("append", {"type": "message", "role": "assistant", "content": "I said something else"}),
        ("inject", {"type": "message", "role": "user", "content": "hurry"}),
    ],
)
def test_messages_are_refused_where_the_form_has_none(form: str, message: Any) -> None:
    """An append takes messages, but not the model's own unless it wrote them; an inject takes none."""
    refused = Refused("invalid_input", "Item of type 'message' cannot be {verb}.", "input")

    async def program(talk: Talk) -> None:
        await suspend(talk)
        await refusal_of(talk, batch(0, message)(talk), refused, by_rollout=True)
        await complete(talk)

    run(program, form)


def test_append_is_refused_on_a_connection_that_did_not_opt_in() -> None:
    """The answer says what to do instead; the inject form goes on working there."""
    refused = Refused(
        "unsupported_event",
        "Unsupported event type 'response.append': this connection did not opt into it. "
        "Send 'response.create' with 'previous_response_id' and the outputs instead.",
        "type",
    )

    async def program(talk: Talk) -> None:
        await suspend(talk)
        frame = {"type": "response.append", "input": [talk.output(0)]}
        await refusal_of(talk, frame, refused, by_rollout=False)
        await complete(talk)

    run(program, "inject")


@pytest.mark.parametrize("form", ["append", "inject"])
def test_a_full_queue_refuses_creates_and_nothing_else(form: str) -> None:
    """The third create that would wait is refused; what runs, waits or is suspended is as it was."""
    refused = Refused(
        "websocket_queue_limit_reached",
        "Too many queued response.create events on this connection.",
        status=429,
        type="too_many_requests",
    )

    def script(prompt: Prompt) -> Script:
        return [[*say("Wait."), Stall(10.0), END]] if prompt.tool_choice == "none" else SCRIPT

    async def program(talk: Talk) -> None:
        await suspend(talk)
        busy = create(tool_choice="none")(talk)
        talk.raw.send(busy)
        await talk.until("response.output_text.delta")
        for _ in range(2):
            talk.raw.send(busy)
        await refusal_of(talk, busy, refused, by_rollout=False)
        for _ in range(3):
            await talk.until(*TERMINAL)
        talk.response_ids.append(talk.response_ids[0])
        await complete(talk)

    outcome = run(program, form, script=script, limits=attrs.evolve(LIMITS, inject_grace_seconds=600.0))

    assert [report.status for report in outcome.reports] == ["completed"] * 4


@pytest.mark.parametrize("form", ["append", "inject"])
def test_a_server_with_too_many_rollouts_refuses_creates(form: str) -> None:
    """Status 503, while the rollouts it has go on."""
    refused = Refused("server_is_overloaded", "The server is overloaded.", status=503, type="server_error")

    async def program(talk: Talk) -> None:
        await suspend(talk)
        await refusal_of(talk, create()(talk), refused, by_rollout=False)
        await complete(talk)

    run(program, form, limits=attrs.evolve(LIMITS, max_open_rollouts=1))


def test_more_than_may_be_held_is_refused() -> None:
    """Messages that wait for the rollout to resume are bounded; the outputs still fit."""
    refused = Refused(
        "invalid_input",
        "Too many items are waiting for response '{r}' to resume.",
        "input",
        429,
        "too_many_requests",
    )

    async def program(talk: Talk) -> None:
        await suspend(talk)
        talk.put(MESSAGE)
        await refusal_of(talk, batch(MESSAGE, MESSAGE, MESSAGE)(talk), refused, by_rollout=True)
        await complete(talk)

    run(program, "append", limits=attrs.evolve(LIMITS, max_held_outputs=3))


# --- what ends the connection ------------------------------------------------------------------------------------


async def send_binary(peer: WirePeer) -> None:
    await peer.send(client_frame(BINARY, b"\x00\x01"))


async def send_too_much(peer: WirePeer) -> None:
    await peer.send(client_frame(TEXT, b" " * (LIMITS.max_message_bytes + 1)))


async def send_no_text(peer: WirePeer) -> None:
    await peer.send(client_frame(TEXT, b"\xff"))


@pytest.mark.parametrize(
    ("misdeed", "code"),
    [(send_binary, 1003), (send_too_much, 1009), (send_no_text, 1007)],
)
def test_a_frame_nobody_can_read_closes_its_connection_only(
    misdeed: Callable[[WirePeer], Any], code: int
) -> None:
    """The close code says why; the rollout there ends with its post-inference, another connection's is completed."""

    async def program(talk: Talk) -> None:
        await suspend(talk)
        peer = WirePeer(await talk.served.open_stream())
        await peer.upgrade()
        request = orjson.dumps(create(tool_choice="auto", tools=[FUNCTION, CUSTOM], **MULTI_AGENT)(talk))
        await peer.send(client_frame(TEXT, request))
        await trio.sleep(1.0)
        await misdeed(peer)
        assert (await peer.read_close())[0] == code
        await peer.stream.aclose()
        await trio.sleep(10.0)
        await complete(talk)

    outcome = run(program, "append")

    assert [report.ending for report in outcome.reports] == ["disconnected", "completed"]
