"""`generate: false`: all is prepared and nothing is said, at any place of a chain (reference 4.3 rule 3)."""

import pytest
import trio

from engine.samplers.paced import Pace
from tests.create_form import Caller, run, text_in

READ_SECONDS = 0.5
"""Time enough to read what is new, and not for what was read ahead."""

WARM_INPUTS = {
    "nothing": [],
    "a developer message": [{"type": "message", "role": "developer", "content": "Be kind."}],
    "text": "call",
}


@pytest.mark.parametrize("name", WARM_INPUTS)
def test_a_warm_up_says_nothing_and_is_a_parent(name: str):
    """Three events, no output, no output tokens, nothing sampled; the next turn has its input in the context."""

    async def program(caller: Caller) -> None:
        warm = await caller.turn(WARM_INPUTS[name], generate=False)
        kinds = [frame["type"].removeprefix("response.") for frame in caller.frames]
        assert kinds == ["created", "in_progress", "completed"]
        assert (warm["output"], warm["usage"]["output_tokens"], warm["store"]) == ([], 0, False)
        turn = await caller.turn("hi", previous_response_id=warm["id"])
        assert text_in(turn) == "You said hi."
        assert turn["usage"]["input_tokens"] > warm["usage"]["input_tokens"]

    left = run(program)

    warmed = {"nothing": [], "a developer message": ["Be kind."], "text": ["call"]}[name]
    assert left.heard() == [*warmed, "hi"]
    assert len(left.sampler.contexts) == 1


def test_a_warm_up_may_stand_anywhere_in_a_chain():
    """After a turn, after another warm-up, and before the output of a call that came long before."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call")
        again = await caller.turn([caller.output(0)], previous_response_id=first["id"], generate=False)
        third = await caller.turn([], previous_response_id=again["id"], generate=False)
        last = await caller.turn("hi", previous_response_id=third["id"])
        assert [each["output"] for each in (again, third)] == [[], []]
        assert text_in(last) == "You said hi."

    left = run(program)

    assert left.kinds() == ["message", "function_call", "function_call_output", "message"]
    assert len(left.sampler.contexts) == 2


def test_a_warm_up_on_a_lane_of_its_own_is_forked_by_several_lanes():
    """One prefix, prepared once, several conversations on it."""

    async def program(caller: Caller) -> None:
        warm = await caller.turn("Be kind.", generate=False, stream_id="warm")
        for lane in ("a", "b"):
            turn = await caller.turn(lane, previous_response_id=warm["id"], stream_id=lane)
            assert text_in(turn) == f"You said {lane}."

    left = run(program)

    assert [left.heard(segment) for segment in (0, 1)] == [["Be kind.", "a"], ["Be kind.", "b"]]


def test_a_warm_up_checks_its_input():
    """It is refused like any create: an unknown parent, an output without its call, a model that is not there."""

    async def program(caller: Caller) -> None:
        await caller.misses("resp_gone", generate=False)
        nobody = {"type": "function_call_output", "call_id": "call_x", "output": "?"}
        frame = await caller.refused([nobody], generate=False)
        assert frame["error"]["message"].endswith("with call_id call_x.")
        assert (await caller.refused(model="gone", generate=False))["status"] == 404

    run(program, may_be_empty=True)


@pytest.mark.parametrize("generate", [True, None])
def test_prewarm_is_another_name_for_it(generate: bool | None):
    """`prompt_cache_options.prewarm`, whatever `generate` says."""

    async def program(caller: Caller) -> None:
        warm = await caller.turn("one", generate=generate, prompt_cache_options={"prewarm": True})
        assert warm["output"] == []
        assert text_in(await caller.turn("two", previous_response_id=warm["id"])) == "You said two."

    left = run(program)

    assert left.heard() == ["one", "two"]
    assert len(left.sampler.contexts) == 1


def test_a_warm_up_counts_what_it_prepared():
    """Its context, no output; the turn on it says how much of that it reused (router-for-me/CLIProxyAPI#6006)."""

    async def program(caller: Caller) -> None:
        warm = await caller.turn("A long story.", generate=False)
        turn = await caller.turn("hi", previous_response_id=warm["id"])
        assert (warm["usage"]["output_tokens"], warm["usage"]["total_tokens"]) == (
            0,
            warm["usage"]["input_tokens"],
        )
        reused = turn["usage"]["input_tokens_details"]["cached_tokens"]
        assert reused <= warm["usage"]["input_tokens"] < turn["usage"]["input_tokens"]

    run(program)


def test_a_warm_up_reads_the_context_where_the_model_can():
    """With a model that can read without speaking the next turn finds it read: the same tokens, in no time."""

    async def program(caller: Caller) -> None:
        warm = await caller.turn("A long story. " * 200, generate=False)
        began = trio.current_time()
        turn = await caller.turn("hi", previous_response_id=warm["id"])
        assert text_in(turn) == "You said hi."
        assert trio.current_time() - began < READ_SECONDS
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] == 0
        assert turn["usage"]["input_tokens_details"]["cached_tokens"] == warm["usage"]["input_tokens"]

    pace = Pace(tokens_per_second=1000.0, first_token_seconds=0.0, prefill_tokens_per_second=100.0)
    left = run(program, pace=pace)

    assert [len(heard) for heard in left.sampler.contexts] == [2]
