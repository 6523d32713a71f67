"""Hosted tools: whatever goes wrong is a short error for the model, and a round runs at once but is written in order."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from engine.assembly import Assembly
from engine.config import Limits
from engine.hosted import HostedCall, HostedResult, HostedTool, HostedTools
from engine.hosted_round import run_hosted_round
from engine.stages import ToolTable
from protocol import codec, events
from protocol.dialects import APPEND

LIMITS = Limits(hosted_tool_timeout_seconds=10, max_hosted_output_bytes=100)
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def tools(function, parameters=None, *, limits=LIMITS) -> HostedTools:
    given_parameters = {} if parameters is None else {"parameters": parameters}
    return HostedTools([HostedTool("label", "tool", function, **given_parameters)], limits=limits)


async def run(function, arguments="{}", parameters=None) -> HostedResult:
    return await tools(function, parameters).run("label", "tool", arguments)


def answering(answer):
    async def function(**_arguments):
        return answer

    return function


def raising(error):
    async def function():
        raise error

    return function


async def test_arguments_come_as_keywords():
    """The members of the arguments object are the function's keywords."""

    async def add(n, *, m=1):
        return n + m

    assert HostedResult(output="5") == await run(add, '{"n": 2, "m": 3}', NUMBER)


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ("text", "text"),
        ("", ""),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (None, "null"),
        (2, "2"),
        ("x" * 100, "x" * 100),
    ],
)
async def test_text_is_sent_as_it_is_and_the_rest_as_json(answer, output):
    """A text is the output itself; any other answer is its JSON."""
    assert HostedResult(output=output) == await run(answering(answer))


@pytest.mark.parametrize("answer", [object(), {1, 2}, 1j, "\ud800", {"a": "\ud800"}])
async def test_an_answer_that_cannot_be_sent_is_an_error(answer):
    """What is neither text of whole characters nor JSON is refused by name."""
    assert HostedResult(error="the answer is neither text nor JSON") == await run(answering(answer))


@pytest.mark.parametrize(("answer", "size"), [("x" * 101, 101), ("é" * 51, 102), (["x" * 97], 101)])
async def test_an_answer_that_is_too_long_is_an_error(answer, size):
    """Bytes are counted, not characters, and the limit is named."""
    expected = HostedResult(error=f"the answer has {size} bytes, more than 100")
    assert expected == await run(answering(answer))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("{", "arguments are not JSON"),
        ("\ud800", "arguments are not JSON"),
        ("{}", 'arguments do not fit the schema: "n" is a required property'),
        ('{"n": "two"}', 'arguments do not fit the schema: "two" is not of type "integer"'),
        ("[1]", 'arguments do not fit the schema: [1] is not of type "object"'),
    ],
)
async def test_wrong_arguments_do_not_reach_the_function(arguments, error):
    """No JSON and no fit are errors of the call."""
    assert HostedResult(error=error) == await run(raising(AssertionError("was called")), arguments, NUMBER)


async def test_arguments_that_are_no_object_are_an_error():
    """Even where the schema allows them: a function has keywords."""
    assert HostedResult(error="arguments are not an object") == await run(
        answering(""), "[1]", {"type": "array"}
    )


async def test_no_arguments_are_an_empty_object():
    """An empty text stands for `{}`."""
    assert HostedResult(output="ok") == await run(answering("ok"), "")


def test_a_schema_that_leads_nowhere_is_found_at_the_start():
    """Not with the first call."""
    with pytest.raises(ValueError, match=r"^the schema of hosted tool 'tool' cannot be used: .*nowhere"):
        tools(answering("ok"), {"$ref": "#/$defs/nowhere"})


@pytest.mark.parametrize(("leaf", "output"), [("", "ok"), ("5", None)])
async def test_arguments_that_are_nested_deeply_are_checked(leaf, output):
    """A recursive schema and the deepest value that can be read: what is wrong at its end is found, and nothing breaks."""
    schema = {
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    arguments = '{"x":' + "[" * 1000 + leaf + "]" * 1000 + "}"
    assert output == (await run(answering("ok"), arguments, schema)).output


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by design"), "ZeroDivisionError: by design"),
        (KeyError("k"), "KeyError: 'k'"),
        (RuntimeError("x" * 1000), "RuntimeError: " + "x" * 486),
        (ValueError("half \udce9"), "ValueError: half ?"),
        (ExceptionGroup("two", [OSError("a")]), "ExceptionGroup: two (1 sub-exception)"),
    ],
)
async def test_a_tool_that_fails_is_an_error_with_its_words(error, words):
    """The model sees type and message, at most 500 characters, whole ones."""
    assert HostedResult(error=words) == await run(raising(error))


async def test_a_tool_that_takes_no_such_argument_fails_like_any_other():
    """A wrong signature is the tool's failure."""

    async def none_wanted():
        return ""

    result = await run(none_wanted, '{"n": 1}', NUMBER)
    assert "TypeError" in result.error


async def test_a_slow_tool_times_out(autojump_clock):
    """After its time a tool is cancelled, and the error says how long that was."""
    cancelled = []

    async def slow():
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(trio.current_time())

    began = trio.current_time()
    assert HostedResult(error="timed out after 10 s") == await run(slow)
    assert [began + 10] == cancelled


async def test_a_cancellation_from_outside_goes_through(autojump_clock):
    """The end of the rollout is no failure of the tool."""
    with trio.move_on_after(1) as scope:
        await run(trio.sleep_forever)
    assert scope.cancelled_caught


async def test_a_call_is_a_checkpoint_whatever_comes_of_it():
    """Also a call that is refused lets others run."""
    with trio.testing.assert_checkpoints():
        await run(answering(""), "{")


def test_labels_tell_which_tools_there_are():
    """Label to names, for the validator of `tools`."""
    made = HostedTools(
        [HostedTool(label, name, answering("")) for label, name in (("a", "x"), ("a", "y"), ("b", "x"))],
        limits=LIMITS,
    )
    assert {"a": frozenset({"x", "y"}), "b": frozenset({"x"})} == made.labels
    assert {} == HostedTools(limits=LIMITS).labels


def test_a_tool_registered_twice_is_refused():
    """Two tools of one label and name are a mistake, named."""
    tool = HostedTool("a", "x", answering(""))
    with pytest.raises(ValueError, match="hosted tool 'x' is registered twice under label 'a'"):
        HostedTools([tool, tool], limits=LIMITS)


def test_a_wrong_schema_is_found_at_the_start():
    """Not with the first call."""
    with pytest.raises(
        ValueError, match=r"^the schema of hosted tool 'tool' is no JSON schema: 'anyOf' fails at '\.type'\.$"
    ):
        tools(answering(""), {"type": "nonsense"})


# --- a round -------------------------------------------------------------------------------------------------------


class Script:
    """An outbox and an assembly whose acts are one list."""

    def __init__(self) -> None:
        self.acts: list = []
        self.events: list = []
        self.assembly = Assembly(self.emit, lambda prefix: prefix, APPEND, ToolTable(), lambda _: False)

    def emit(self, event) -> None:
        codec.encode(event)  # it can be sent
        self.events.append(event)
        self.acts.append((event.type.removeprefix("response."), trio.current_time()))

    def flush(self) -> None:
        self.acts.append(("flush", trio.current_time()))

    async def wait_writable(self) -> None:
        raise AssertionError("a round does not wait for the client")

    def hook(self, name, members) -> None:
        raise AssertionError("a round has no hooks")


def sleeper() -> HostedTools:
    async def sleep(seconds):
        await trio.sleep(seconds)
        if seconds == 3:
            raise ZeroDivisionError
        return f"slept {seconds}"

    return tools(sleep)


def calls_of(*seconds) -> list[HostedCall]:
    return [HostedCall(f"mcp_{n}", "label", "tool", [f'{{"seconds":{s}}}'], n) for n, s in enumerate(seconds)]


async def test_a_round_runs_at_once_and_is_written_in_order(autojump_clock):
    """Two calls take as long as the longer; the second's item begins when the first's is done."""
    script, began = Script(), trio.current_time()
    await run_hosted_round(calls_of(2, 1), sleeper(), script.assembly, script)
    start = [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "flush",
    ]
    end = ["mcp_call.completed", "output_item.done", "flush"]
    expected = [(act, 0.0) for act in start] + [(act, 2.0) for act in (*end, *start, *end)]
    assert expected == [(act, time - began) for act, time in script.acts]
    assert ["slept 2", "slept 1"] == [item.output for item in script.assembly.items]


async def test_a_call_that_fails_does_not_end_the_round(autojump_clock):
    """The others answer as if nothing had happened, and the failed one is an item that says why."""
    script = Script()
    await run_hosted_round(calls_of(1, 3, 2), sleeper(), script.assembly, script)
    assert ["completed", "failed", "completed"] == [item.status for item in script.assembly.items]
    assert "ZeroDivisionError: " == script.assembly.items[1].error


async def test_no_calls_are_no_round():
    """Nothing to run is not even a checkpoint."""
    script = Script()
    with trio.testing.assert_no_checkpoints():
        await run_hosted_round([], sleeper(), script.assembly, script)
    assert [] == script.acts


async def test_a_cancelled_round_leaves_its_item_open(autojump_clock):
    """Whoever cancels the rollout ends its tools; what the round began is for `cut` to see or for nobody."""
    script = Script()
    with trio.move_on_after(0.5) as scope:
        await run_hosted_round(calls_of(1, 2), sleeper(), script.assembly, script)
    assert (True, []) == (scope.cancelled_caught, script.assembly.items)


@given(seconds=st.lists(st.sampled_from([0, 1, 2, 3, 4]), min_size=1, max_size=6))
def test_any_round_is_written_whole_and_in_order(seconds):
    """Whatever takes how long, items come one after the other, in the order of the calls, in the time of the longest."""

    async def main():
        script = Script()
        await run_hosted_round(calls_of(*seconds), sleeper(), script.assembly, script)
        return script, trio.current_time()

    script, now = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    opened = [event.output_index for event in script.events if isinstance(event, events.OutputItemAdded)]
    done = [event.item.id for event in script.events if isinstance(event, events.OutputItemDone)]
    count = len(seconds)
    assert (list(range(count)), [f"mcp_{n}" for n in range(count)]) == (opened, done)
    assert pytest.approx(max(seconds)) == now
