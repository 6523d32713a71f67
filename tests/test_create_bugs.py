"""Public bugs of other servers as scenarios of the create form and HTTP, each with the report that it comes from."""

from typing import Any

import orjson
import pytest
import trio

from engine.config import DEFAULT_LIMITS
from tests.create_form import STALL_SECONDS, Caller, connect, error_frame, run, text_in, user
from tests.scenarios import TERMINAL
from tests.wire import FINAL, PING, PONG, TEXT, WirePeer, client_frame

NOBODY = {"type": "function_call_output", "call_id": "call_x", "output": "?"}


@pytest.mark.parametrize(
    ("generate", "texts"), [(False, []), (True, ["You said hi."]), (None, ["You said hi."])]
)
def test_generate_is_honoured(generate: bool | None, texts: list[str]):
    """router-for-me/CLIProxyAPI#1901: each of its three values, never "unsupported"."""

    async def program(caller: Caller) -> None:
        resource = await caller.turn("hi", generate=generate)
        assert [text_in({"output": [item]}) for item in resource["output"]] == texts

    run(program)


def test_a_warm_up_after_a_turn_costs_no_output():
    """router-for-me/CLIProxyAPI#6006: empty output, no output tokens, and a turn on it has the whole chain."""

    async def program(caller: Caller) -> None:
        turn = await caller.turn("one")
        warm = await caller.turn("two", generate=False, previous_response_id=turn["id"])
        assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
        await caller.turn("three", previous_response_id=warm["id"])

    left = run(program)

    assert left.heard() == ["one", "You said one.", "two", "three"]
    assert [report.usage.output_tokens > 0 for report in left.reports] == [True, False, True]


def test_behind_the_id_of_a_warm_up_is_real_state():
    """decolua/9router#3440: the turn that follows at once is answered by itself, and can be continued."""

    async def program(caller: Caller) -> None:
        warm = await caller.turn([], generate=False, instructions="Be kind.")
        turn = await caller.turn("one", previous_response_id=warm["id"], instructions="Be kind.")
        assert text_in(turn) == "You said one."
        assert text_in(await caller.turn("two", previous_response_id=turn["id"])) == "You said two."

    run(program)


def test_an_output_alone_is_not_a_fresh_turn():
    """Soju06/codex-lb: no parent, no call: 400, and nothing is sampled."""

    async def program(caller: Caller) -> None:
        frame = await caller.refused([NOBODY])
        message = "No tool call found for function call output with call_id call_x."
        assert frame == error_frame(None, message, "input")

    assert not run(program, may_be_empty=True).sampler.contexts


def test_without_a_parent_a_used_socket_is_like_a_fresh_one():
    """router-for-me/CLIProxyAPI#5811: after a long chain the same input has the same tokens on a used socket, a used lane and a fresh socket."""
    window = [user("In short: we went west."), user("hi")]

    async def program(caller: Caller) -> None:
        parent = None
        for text in ("one " * 50, "two " * 50):
            parent = (await caller.turn(text, previous_response_id=parent, stream_id="a"))["id"]
        usages = [
            (await caller.turn(window, stream_id="a"))["usage"],
            (await caller.turn(window))["usage"],
        ]
        async with connect(caller.served) as fresh:
            usages.append((await fresh.turn(window))["usage"])
        assert usages == [usages[0]] * 3

    run(program)


def test_a_transcript_that_repeats_half_of_the_chain_is_taken_as_it_is():
    """router-for-me/CLIProxyAPI#2266: exactly the given input, not merged with what the socket remembers."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call")
        await caller.turn([caller.output(0)], previous_response_id=first["id"])
        await caller.turn([user("call"), caller.calls[0], caller.output(0), user("hi")])

    left = run(program)

    assert left.kinds() == ["message", "function_call", "function_call_output", "message"]


@pytest.mark.parametrize("told", ["call", "patch", "both"])
@pytest.mark.parametrize("as_parts", [False, True])
def test_each_kind_of_output_answers_its_call(told: str, as_parts: bool):
    """Wei-Shaw/sub2api#2747: functions and custom tools, text and parts, and no output is dropped."""

    async def program(caller: Caller) -> None:
        first = await caller.turn(told)
        text: Any = [{"type": "input_text", "text": "42"}] if as_parts else "42"
        outputs = [caller.output(place, text) for place in range(len(caller.calls))]
        second = await caller.turn(outputs, previous_response_id=first["id"])
        assert text_in(second) == "You said ok."

    left = run(program)

    calls = [kind for kind in left.kinds() if kind.endswith("_call")]
    assert [kind for kind in left.kinds() if kind.endswith("_output")] == [f"{kind}_output" for kind in calls]


def test_a_user_who_edits_while_a_call_is_pending_is_told_what_is_missing():
    """Wei-Shaw/sub2api#2098: with the parent the output is missing; without it a new chain begins on the same socket."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call")
        frame = await caller.refused([user("wait, no")], previous_response_id=first["id"])
        call_id = caller.calls[0]["call_id"]
        assert frame == error_frame(None, f"No tool output found for function call {call_id}.", "input")
        assert text_in(await caller.turn([user("again")])) == "You said again."

    left = run(program)

    assert left.heard() == ["again"]


def test_lanes_keep_their_own_chains_beside_an_error():
    """vllm-project/agentic-api#239: two lanes at once, an error on one, and each goes on where it was."""

    async def program(caller: Caller) -> None:
        parents: dict[str, str] = {}
        for lane in ("a", "b"):
            caller.create(f"{lane} one", stream_id=lane)
        for _ in range(2):
            frame = await caller.until(*TERMINAL)
            parents[frame["stream_id"]] = frame["response"]["id"]
        assert (await caller.refused([NOBODY], stream_id="a"))["stream_id"] == "a"
        for lane in ("a", "b"):
            caller.create(f"{lane} two", stream_id=lane, previous_response_id=parents[lane])
        said = {
            frame["stream_id"]: frame["response"] for frame in [await caller.until(*TERMINAL) for _ in "ab"]
        }
        assert {lane: text_in(resource) for lane, resource in said.items()} == {
            "a": "You said a two.",
            "b": "You said b two.",
        }

    left = run(program)

    heard = sorted(left.heard(segment) for segment in (2, 3))
    assert heard == [[f"{lane} one", f"You said {lane} one.", f"{lane} two"] for lane in ("a", "b")]


@pytest.mark.parametrize("cut", range(11))
def test_a_client_that_comes_back_with_everything_is_served(cut: int):
    """openai/codex#20739: cut after each event; on the new socket the full input works, and the old sampling has stopped."""

    async def program(caller: Caller) -> None:
        stream = await caller.served.open_stream()
        async with caller.served.connect_raw(append=False, stream=stream) as raw:
            cut_off = Caller(raw, "create", caller.served)
            cut_off.create("wait")
            for _ in range(cut):
                await cut_off.next()
            await trio.aclose_forcefully(stream)  # no close frame: the network died
        assert text_in(await caller.turn("wait")) == "Wait.Done."

    left = run(program, may_be_empty=cut == 0)

    assert left.reports[-1].status == "completed"


def test_the_reader_reads_while_the_model_is_slow():
    """Wei-Shaw/sub2api#4163: ten creates are sent while one samples for minutes; pings are answered on both sides, nothing is cut."""

    async def program(caller: Caller) -> None:
        peer = WirePeer(await caller.served.open_stream())
        await peer.upgrade()
        create = {"type": "response.create", "model": "m", "store": False, "input": "wait"}
        for _ in range(10):
            await peer.send(client_frame(TEXT, orjson.dumps(create)))
        await peer.send(client_frame(PING, b"are you there?"))
        completed, answers, asked = 0, [], 0
        while completed < 10:
            first, payload = await peer.read_frame() or (0, b"")
            if first == FINAL | PING:
                asked += 1
                await peer.send(client_frame(PONG, payload))
            elif first == FINAL | PONG:
                answers.append((payload, completed))
            else:
                assert first == FINAL | TEXT
                completed += orjson.loads(payload)["type"] == "response.completed"
        await peer.stream.aclose()
        assert answers == [(b"are you there?", 0)]
        assert asked == int(10 * STALL_SECONDS // DEFAULT_LIMITS.ping_interval_seconds)

    run(program, may_be_empty=True)


def test_generation_stops_when_the_client_leaves():
    """vllm-project/vllm#54947: the sampler is stopped within a fifth of a second, and its sampling is closed."""
    left_at: list[float] = []

    async def program(caller: Caller) -> None:
        caller.create("wait")
        await caller.until("response.output_text.delta")
        await trio.sleep(1.0)
        left_at.append(trio.current_time())

    left = run(program)

    assert len(left.sampler.stopped_at) == 1
    assert 0 <= left.sampler.stopped_at[0] - left_at[0] <= 0.2
    assert left.reports[0].status == "cancelled"
