"""The vLLM backend against an imitation of its server: tokens, counts that are never invented, aborts and failures."""

from array import array
from contextlib import aclosing

import pytest
import trio
import trio.testing

from engine.backends.base import BackendError, Sampling
from engine.backends.conformance import check_backend
from engine.backends.vllm import VllmStatistics, make_vllm
from engine.config import DEFAULT_LIMITS
from tests.vllm_peer import MAX_TOKENS, STOP_TOKEN, VllmServer, vllm

PROMPT = array("I", range(100, 200))
FEW = Sampling(max_tokens=4)


class Older(VllmServer):
    """Knows nothing of what is asked."""

    async def answer(self, asked, reply):
        await reply.json({"detail": "Not Found"}, status=404)


async def generated(backend, tokens=PROMPT, sampling=FEW, handle=None):
    """(tokens, last piece) of one generation; without a handle in one of the same cache key."""
    async with aclosing(backend.generate(handle or backend.open("one"), tokens, sampling)) as pieces:
        everything = [piece async for piece in pieces]
    return [token for piece in everything for token in piece.tokens], everything[-1]


def counts(piece):
    return (piece.reused_tokens, piece.computed_tokens)


# --- the promise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("says_details", [True, False])
async def test_the_backend_keeps_the_rules(autojump_clock, says_details):
    """The conformance function passes, and reuse is reported in whole blocks, whoever says it."""
    async with vllm(VllmServer(says_details=says_details)) as (backend, _):
        report = await check_backend(
            backend, prompt=PROMPT, more=array("I", range(64)), stop_tokens=frozenset({STOP_TOKEN})
        )
    reused, computed = report.warm
    assert 96 <= reused < len(PROMPT) + 24
    assert reused % 16 == 0
    assert computed >= 64
    assert report.restored is None
    assert report.found[0] >= reused


async def test_the_request_is_what_vllm_reads(autojump_clock):
    """All tokens go there each time, with the room that is left, and stop tokens are only those of the format."""
    server = VllmServer(has_tokenizer=True)
    async with vllm(server, model="tiny", context_tokens=120, keeps_schemas=True) as (backend, server):
        await generated(backend)
        await generated(backend, sampling=Sampling(max_tokens=50, temperature=0.5, top_p=0.9, seed=7))
        schema = {"enum": ["yes", "no"]}
        stop = frozenset({STOP_TOKEN, 1})
        await generated(backend, sampling=Sampling(max_tokens=1, schema=schema, stop_tokens=stop))
        await generated(backend, sampling=Sampling())
        first, second, third, fourth = (
            asked.body for asked in server.peer.asked if asked.target.endswith("generate")
        )
    assert first.pop("request_id") != second.pop("request_id")
    assert first.pop("cache_salt") == second.pop("cache_salt")
    assert first == {
        "model": "tiny",
        "token_ids": PROMPT.tolist(),
        "sampling_params": {
            "max_tokens": 4,
            "temperature": 0.0,
            "top_p": 1.0,
            "stop_token_ids": [],
            "ignore_eos": True,
            "detokenize": False,
        },
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chosen = {
        name: second["sampling_params"][name] for name in ("max_tokens", "temperature", "top_p", "seed")
    }
    assert chosen == {"max_tokens": 20, "temperature": 0.5, "top_p": 0.9, "seed": 7}
    assert third["sampling_params"]["structured_outputs"] == {"json": schema}
    assert third["sampling_params"]["stop_token_ids"] == [1, STOP_TOKEN]
    assert third["sampling_params"]["ignore_eos"] is False
    assert third["reasoning_ended"] is True
    assert fourth["sampling_params"]["max_tokens"] == 20


async def test_a_stop_token_is_among_the_tokens(autojump_clock):
    """The last token of an answer that stopped is the token that stopped it."""
    async with vllm() as (backend, _):
        free, _ = await generated(backend, sampling=Sampling(max_tokens=6))
        stopped, last = await generated(
            backend, sampling=Sampling(max_tokens=6, stop_tokens=frozenset({free[3]}))
        )
    assert (stopped, last.finish) == (free[:4], "stop")


async def test_name_and_length_of_the_model_are_learned(autojump_clock):
    """Before the first generation both are read from the server, once; a model that is not there is refused."""
    async with vllm() as (backend, server):
        await generated(backend)
        await generated(backend)
        assert backend.context_tokens == MAX_TOKENS
        bodies = [asked.body["model"] for asked in server.peer.asked if asked.method == "POST"]
        assert bodies == ["tiny", "tiny"]
        assert [asked.target for asked in server.peer.asked].count("/v1/models") == 1
    async with vllm(model="huge") as (backend, _):
        with pytest.raises(BackendError, match="serves no model 'huge'"):
            await generated(backend)


async def test_the_background_task_learns_and_tidies_up(autojump_clock):
    """`run` learns of the model before anything is asked, minds no server that is away, and closes what is idle."""
    async with vllm() as (backend, server), trio.open_nursery() as nursery:
        nursery.start_soon(backend.run)
        await trio.testing.wait_all_tasks_blocked()
        assert (backend.context_tokens, server.peer.left) == (MAX_TOKENS, 0)
        nursery.cancel_scope.cancel()
    assert server.peer.left == 1
    async with vllm(Older()) as (backend, _), trio.open_nursery() as nursery:
        nursery.start_soon(backend.run)
        await trio.testing.wait_all_tasks_blocked()
        assert backend.context_tokens == 0
        nursery.cancel_scope.cancel()


# --- counts --------------------------------------------------------------------------------------------------------


async def test_details_in_the_answer_are_believed_and_the_counters_left_alone(autojump_clock):
    """A server that reports cached tokens is not asked for its counters any more."""
    async with vllm(VllmServer(says_details=True)) as (backend, server):
        assert [counts((await generated(backend))[1]) for _ in range(3)] == [(0, 100), (96, 4), (96, 4)]
        targets = [asked.target for asked in server.peer.asked]
    assert targets == ["/v1/models", "/metrics"] + ["/inference/v1/generate"] * 3
    assert backend.statistics == VllmStatistics(requests=3, reused_tokens=192, computed_tokens=108)


async def test_without_details_the_counters_tell(autojump_clock):
    """The difference of the counters is what was reused; each request needs one reading after the first."""
    async with vllm() as (backend, server):
        assert [counts((await generated(backend))[1]) for _ in range(3)] == [(0, 100), (96, 4), (96, 4)]
        assert sum(asked.target == "/metrics" for asked in server.peer.asked) == 4


async def test_a_cache_that_was_emptied_meanwhile_is_told(autojump_clock):
    """Blocks that were evicted during a tool call count as computed again, and the tokens are the same."""
    async with vllm() as (backend, server):
        handle = backend.open()
        before = await generated(backend, handle=handle)
        assert handle.resident_tokens == 96
        server.blocks.clear()
        after = await generated(backend, handle=handle)
    assert after == before
    assert counts(after[1]) == (0, 100)


async def test_each_cache_key_has_its_salt(autojump_clock):
    """One key's handles hit the same blocks, another's and those without a key their own; nothing tells the key."""
    async with vllm(VllmServer(says_details=True)) as (backend, server):
        keyless = backend.open()
        handles = [
            *map(backend.open, ("secret", "secret", "other", None)),
            keyless,
            await backend.fork(keyless),
        ]
        seen = []
        for handle in handles:
            seen.append(counts((await generated(backend, handle=handle))[1])[0])
            if handle is not keyless:
                await backend.release(handle)
        salts = [asked.body["cache_salt"] for asked in server.peer.asked if asked.target.endswith("generate")]
    assert seen == [0, 96, 0, 0, 0, 96]
    assert [salts.index(salt) for salt in salts] == [0, 0, 2, 3, 4, 4]
    assert "secret" not in str(salts)
    assert handles[0].resident_tokens == 0


async def test_counters_that_others_moved_tell_nothing(autojump_clock):
    """When another client was served meanwhile the counts are None, and good again afterwards."""
    async with vllm() as (backend, server):
        await generated(backend)
        server.queries += 32
        server.hits += 32
        assert counts((await generated(backend))[1]) == (None, None)
        assert counts((await generated(backend))[1]) == (96, 4)
    assert backend.statistics.uncounted_requests == 1


async def test_requests_beside_each_other_are_not_counted_by_the_counters(autojump_clock):
    """Of two generations at the same time neither knows its share; the next one that is alone does."""
    async with vllm(VllmServer(token_seconds=1)) as (backend, _):
        seen = []

        async def one(tokens):
            seen.append(counts((await generated(backend, tokens))[1]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, PROMPT)
            await trio.sleep(0.5)
            nursery.start_soon(one, PROMPT[::-1])
        assert seen == [(None, None)] * 2
        assert counts((await generated(backend))[1]) == (96, 4)


@pytest.mark.parametrize("options", [{"reads_metrics": False}, {}])
async def test_what_nobody_says_is_not_made_up(autojump_clock, options):
    """Without details and without counters the counts are None."""
    async with vllm(VllmServer(has_metrics=bool(options)), **options) as (backend, server):
        for _ in range(2):
            assert counts((await generated(backend))[1]) == (None, None)
        assert sum(asked.target == "/metrics" for asked in server.peer.asked) == (0 if options else 1)


# --- leaving -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "cancel"])
async def test_leaving_stops_the_server_twice(autojump_clock, way):
    """An answer that is left has its connection closed and is aborted by name, and nothing is sampled after 200 ms."""
    async with vllm(VllmServer(token_seconds=0.05)) as (backend, server):
        handle = backend.open()
        with trio.CancelScope() as scope:
            async with aclosing(backend.generate(handle, PROMPT, Sampling())) as pieces:
                async for _ in pieces:
                    if len(server.sampled_at) == 3:
                        break
                if way == "cancel":
                    scope.cancel()
                    await anext(pieces)
        left_at = trio.current_time()
        await trio.sleep(10)
        (asked,) = (asked.body for asked in server.peer.asked if asked.target.endswith("generate"))
        assert server.aborted == [f"generate-tokens-{asked['request_id']}"]
        assert max(server.sampled_at) - left_at <= 0.2
        assert backend.statistics.aborted == 1
        assert handle.resident_tokens == 96
        assert (await generated(backend, handle=handle))[1].finish == "length"


async def test_a_server_that_does_not_answer_the_abort_is_not_waited_for(autojump_clock):
    """Leaving takes less than 200 ms, whatever the server does."""

    class Stuck(VllmServer):
        async def answer(self, asked, reply):
            if "abort" in asked.target:
                await trio.sleep_forever()
            await super().answer(asked, reply)

    async with vllm(Stuck(token_seconds=1)) as (backend, _):
        async with aclosing(backend.generate(backend.open(), PROMPT, Sampling())) as pieces:
            await anext(pieces)
            began = trio.current_time()
        assert trio.current_time() - began <= 0.2


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason", "aborted"),
    [
        ("hangs up", "died", 0),
        ("dies", "died", 0),
        ("fails", "died", 0),
        ("is aborted", "died", 0),
        ("is silent", "timeout", 1),
        ("talks nonsense", "broke_promise", 1),
        ("talks more nonsense", "broke_promise", 1),
        ("ends early", "broke_promise", 1),
    ],
)
async def test_a_failure_is_typed_and_the_next_generation_works(autojump_clock, fault, reason, aborted):
    """Each way to fail has its reason; what may still run is aborted; the backend is as good as new."""
    async with vllm(VllmServer(faults={1: fault})) as (backend, server):
        handle = backend.open()
        with pytest.raises(BackendError) as caught:
            await generated(backend, handle=handle)
        assert (caught.value.reason, len(server.aborted)) == (reason, aborted)
        assert (await generated(backend, handle=handle))[1].finish == "length"


async def test_a_prompt_that_is_too_long_is_refused(autojump_clock):
    """What vLLM reports in the stream, with the status of a refusal, is `refused`."""
    async with vllm() as (backend, _):
        with pytest.raises(BackendError, match="longer than the maximum") as caught:
            await generated(backend, array("I", [7] * (MAX_TOKENS + 1)))
    assert caught.value.reason == "refused"


async def test_a_server_without_the_endpoint_is_refused(autojump_clock):
    """A vLLM that was not started for tokens answers 404."""

    async with vllm(Older()) as (backend, _):
        with pytest.raises(BackendError, match="404") as caught:
            await generated(backend)
    assert caught.value.reason == "refused"


# --- handles -------------------------------------------------------------------------------------------------------


async def test_a_handle_is_a_belief(autojump_clock):
    """Dropped it holds nothing, forked it holds the same, and nothing is saved."""
    async with vllm() as (backend, _):
        handle = backend.open()
        assert handle.resident_tokens == 0
        await generated(backend, handle=handle)
        fork = await backend.fork(handle)
        await backend.save(handle)
        assert await backend.restore(handle) is False
        await backend.drop(handle)
        assert (handle.resident_tokens, fork.resident_tokens) == (0, 96)


# --- how it is written ---------------------------------------------------------------------------------------------


def test_a_spec_is_read():
    """A spec names URL, model, window and what the server can do."""
    backend = make_vllm("http://host:8000?model=m&context=4096&schemas=yes", DEFAULT_LIMITS)
    assert (backend.name, backend.context_tokens, backend.keeps_schemas) == ("vllm:m", 4096, True)
    backend = make_vllm("http://host:8000", DEFAULT_LIMITS)
    assert (backend.name, backend.keeps_schemas) == ("vllm:http://host:8000", False)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("", "vllm: needs a URL"),
        ("host:8000", "vllm: a backend's URL is"),
        ("http://h?context=many", "vllm: context='many' is not a number above 0"),
        (
            "http://h?schema=yes",
            "vllm: no option 'schema'; there are context, key, metrics, model, schemas, silence",
        ),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(rest, words):
    """A spec that cannot be read is a `ValueError` that says how to write it."""
    with pytest.raises(ValueError, match=words):
        make_vllm(rest, DEFAULT_LIMITS)
