"""Public bugs of other servers that concern connections, time and accounts, over WebSocket (create form) and HTTP.

Each docstring begins with the report that the scenario comes from. Those of the create form alone: `test_create_bugs`.
"""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
import trio

from engine.config import DEFAULT_LIMITS, Limits
from engine.faults import FaultPlan, Way
from engine.samplers.base import Appended, Prompt, Steps, Text, Thought
from engine.samplers.scripted import END, Scripted, Stall, say
from engine.simulation import ActAtStep
from engine.storage import MemoryStore, UsageRow
from engine.testing import Served, serving, simulate, simulated_engine
from tests.create_form import Caller, connect, run, text_in, user
from tests.http_peer import HttpPeer
from tests.scenarios import TERMINAL, wait_idle
from tests.test_http import bearer, http, words
from tests.wire import FINAL, PING, PONG, TEXT, WirePeer, client_frame

FORMS = ("create", "http")
HIGH_WATER_BYTES = DEFAULT_LIMITS.outbox_high_water_bytes


# --- what a create takes along -------------------------------------------------------------------------------------


async def test_a_compacted_window_is_the_whole_input_everywhere(autojump_clock):
    """router-for-me/CLIProxyAPI#5811: over HTTP too the same tokens, on used and fresh connections of either kind."""
    async with http([[*say("ok"), END]]) as (served, peer):
        used = await peer()
        first = (await used.create(input="one " * 50)).json
        await used.create(input="two " * 50, previous_response_id=first["id"])
        body = {"model": "m", "previous_response_id": first["id"]}
        window = (await used.ask("POST", "/v1/responses/compact", body)).json["output"]
        create = {"model": "m", "input": [*window, user("hi")]}
        usages = [
            (await client.ask("POST", "/v1/responses", create)).json["usage"]
            for client in (used, await peer())
        ]
        async with served.connect_raw(append=False) as raw:
            caller = Caller(raw, "create", served)
            chain = await caller.turn("three " * 50)
            await caller.turn("four " * 50, previous_response_id=chain["id"])
            usages.append((await caller.turn(create["input"], tools=[]))["usage"])
    assert len({usage["input_tokens"] for usage in usages}) == 1


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/responses/input_tokens"])
async def test_a_foreign_chain_is_neither_compacted_nor_counted(path, autojump_clock):
    """BerriAI/litellm#39559: on these surfaces too another key's id is answered like one that never was."""
    async with http([[*say("secret"), END]], key=("sk-a", "sk-b")) as (_, peer):
        owner, stranger = await peer(bearer("sk-a")), await peer(bearer("sk-b"))
        made = (await owner.create(input="my secret")).json["id"]
        for each in (made, "resp_" + "0" * 32):
            body = {"model": "m", "input": "hi", "previous_response_id": each}
            answer = await stranger.ask("POST", path, body)
            assert words("previous_not_found", response_id=each) == (answer.status, answer.json)
        body = {"model": "m", "input": "hi", "previous_response_id": made}
        assert 200 == (await owner.ask("POST", path, body)).status


# --- silence, and clients that do not read -------------------------------------------------------------------------


async def test_a_silent_socket_is_kept_alive_by_control_frames_alone(autojump_clock):
    """router-for-me/CLIProxyAPI#5413, Menci/Floway#324: a ping each 30 s while the model thinks, and no JSON of ours."""
    pings, kinds = [], []
    async with serving(simulated_engine(Scripted([[Stall(200), *say("late"), END]]), seed=1)) as served:
        peer = WirePeer(await served.open_stream())
        await peer.upgrade()
        await peer.send(
            client_frame(TEXT, orjson.dumps({"type": "response.create", "model": "m", "input": "hi"}))
        )
        while "response.completed" not in kinds:
            first, payload = await peer.read_frame() or (0, b"")
            if first == FINAL | PING:
                pings.append(trio.current_time())
                await peer.send(client_frame(PONG, payload))
            else:
                assert first == FINAL | TEXT
                kinds.append(orjson.loads(payload)["type"])
        await peer.stream.aclose()
    assert [30.0 * n for n in range(1, 7)] == pings
    assert ["response.created", "response.in_progress", "response.output_item.added"] == kinds[:3]


class Torrent:
    """Says a word in each step, without pace and end; counts them."""

    def __init__(self) -> None:
        self.words = 0
        self.stopped_at: float | None = None

    def open(self, prompt: Prompt) -> "Torrent":
        return self if prompt.model == "torrent" else _Brief()  # type: ignore[return-value]  # another sampling

    async def sample(self, _appended: Appended) -> Steps:
        try:
            while True:
                await trio.lowlevel.checkpoint()
                self.words += 1
                yield (Text("word " * 100),)
        finally:
            self.stopped_at = trio.current_time()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class _Brief:
    async def sample(self, _appended: Appended) -> Steps:
        await trio.sleep(2)
        yield (*say("brief")[0], *END)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def ask_and_stall(served: Served, form: str) -> trio.abc.Stream:
    """A client that asks for the torrent and reads nothing of it, behind a network that holds 20 kB."""
    stream = await served.open_stream(FaultPlan(outbound=Way(stall_at_bytes=20_000, stall_seconds=3600)))
    body = {"model": "torrent", "input": "go", "stream": True}
    if form == "http":
        await HttpPeer(stream).send("POST", "/v1/responses", body)
    else:
        peer = WirePeer(stream)
        await peer.upgrade()
        await peer.send(client_frame(TEXT, orjson.dumps({"type": "response.create", **body})))
    return stream


def unsent_bytes(served: Served, form: str) -> int:
    if form == "http":
        return sum(live.events.unsent_bytes for live in served.server.live)
    return sum(transport.statistics().unsent_bytes for transport in served.server._connections.values())


@pytest.mark.parametrize("form", FORMS)
def test_a_client_that_never_reads_is_held_and_then_cut(form: str):
    """MAXeaglet/commandcode-proxy#20, pleaseai/shunt#155: bounded bytes, a model that waits, an end after 10 s."""
    torrent = Torrent()

    async def scenario() -> None:
        async with serving(simulated_engine(torrent, seed=1)) as served:
            stream = await ask_and_stall(served, form)
            other = HttpPeer(await served.open_stream())
            assert 200 == (await other.create()).status
            assert 2 == trio.current_time()  # on time
            held, said = unsent_bytes(served, form), torrent.words
            assert HIGH_WATER_BYTES < held < 2 * HIGH_WATER_BYTES
            await trio.sleep(7)
            assert (held, said) == (unsent_bytes(served, form), torrent.words)
            await trio.sleep(4)
            assert (0, 0) == (unsent_bytes(served, form), served.server.engine.slots.statistics().held)
            assert torrent.stopped_at == pytest.approx(DEFAULT_LIMITS.send_timeout_seconds, abs=0.5)
            await stream.aclose()
            await other.stream.aclose()
            await wait_idle(served)

    simulate(scenario, seed=1)


# --- one key for many frames ---------------------------------------------------------------------------------------


def test_an_idempotency_key_of_the_connection_is_no_frames():
    """experientiallabs/experiential#706: three creates on one upgrade, or three requests with one key, are three."""

    async def program(caller: Caller) -> None:
        headers = [("Idempotency-Key", "one-for-all")]
        async with caller.served.connect_raw(append=False, headers=headers) as raw:
            keyed = Caller(raw, "create", caller.served)
            said = [text_in(await keyed.turn(text)) for text in ("one", "two", "two")]
        assert ["You said one.", "You said two.", "You said two."] == said
        peer = HttpPeer(await caller.served.open_stream(), headers)
        made = [(await peer.create(input=text)).json for text in ("one", "two", "two")]
        assert said == [text_in(each) for each in made]
        assert 3 == len({each["id"] for each in made})
        await peer.stream.aclose()

    run(program, may_be_empty=True)


# --- cancelling ----------------------------------------------------------------------------------------------------


def cancelled_at(step: int) -> tuple[bool, bool | None, dict[str, Any]]:
    """Cancel at a step: was there such a step, what was the canceller told, and how did the response end?"""
    act = ActAtStep(step)
    told: list[bool] = []
    ends: list[dict[str, Any]] = []

    async def scenario() -> None:
        engine = simulated_engine(
            Scripted([[*(each for word in "abc" for each in (*say(word), Stall(1))), END]]), seed=1
        )
        async with serving(engine) as served:
            async with connect(served) as caller:
                caller.create()
                await caller.until("response.created")
                act.steps = 0
                act.act = lambda: told.append(served.server.cancel(caller.response_ids[0]))
                ends.append((await caller.until(*TERMINAL))["response"])
                await trio.sleep(1)
                assert TERMINAL.count(caller.frames[-1]["type"]) == 1
            await wait_idle(served)

    simulate(scenario, seed=1, instruments=[act])
    return act.acted, told[0] if told else None, ends[0]


def test_a_cancellation_that_is_acknowledged_is_one():
    """SamSaffron/term-llm#789: at whatever step it comes, told yes it is cancelled, told no it has completed."""
    outcomes = []
    for step in range(1, 10_000):
        acted, told, resource = cancelled_at(step)
        if not acted:
            break
        error = (resource["error"] or {}).get("code")
        outcomes.append((told, resource["status"], error))
    assert {(True, "cancelled", "invalid_prompt"), (False, "completed", None)} == set(outcomes)
    assert len(outcomes) > 20


def test_nothing_of_a_cancelled_response_is_under_the_next_question():
    """NVIDIA/NeMo-Agent-Toolkit#500: cancelled, and a create at once: from its first event on only its own."""

    async def program(caller: Caller) -> None:
        caller.create("wait")
        await caller.until("response.output_text.delta")
        assert caller.served.server.cancel(caller.response_ids[0])
        caller.create("hi")
        assert "cancelled" == (await caller.until(*TERMINAL))["response"]["status"]
        old = {frame["item"]["id"] for frame in caller.frames if "item" in frame}
        caller.frames.clear()
        assert "You said hi." == text_in((await caller.until(*TERMINAL))["response"])
        await trio.sleep(60)
        assert list(range(len(caller.frames))) == [frame["sequence_number"] for frame in caller.frames]
        assert not old & {frame["item"]["id"] for frame in caller.frames if "item" in frame}

    left = run(program)

    assert ["hi"] == left.heard()


# --- accounts ------------------------------------------------------------------------------------------------------


def test_each_response_of_a_socket_has_its_own_usage_row():
    """Wei-Shaw/sub2api#2923, vm0-ai/vm0#17099: three turns, two lanes and a warm-up are six rows, as the client was told."""
    told: dict[str, Any] = {}

    async def program(caller: Caller) -> None:
        parent = None
        for text in ("one", "two", "three"):
            resource = await caller.turn(text, previous_response_id=parent)
            parent, told[resource["id"]] = resource["id"], resource["usage"]
        for lane in ("a", "b"):
            caller.create(lane, previous_response_id=parent, stream_id=lane)
        for _ in "ab":
            resource = (await caller.until(*TERMINAL))["response"]
            told[resource["id"]] = resource["usage"]
        warm = await caller.turn("warm", generate=False)
        told[warm["id"]] = warm["usage"]
        rows = await caller.served.server.engine.store.usage("")
        assert told == {row.response_id: usage_of(row) for row in rows}
        assert 6 == len(rows)

    run(program)


def usage_of(row: UsageRow) -> dict[str, Any]:
    """As the client is told."""
    return {
        "input_tokens": row.input_tokens,
        "input_tokens_details": {"cached_tokens": row.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": row.output_tokens,
        "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
        "total_tokens": row.input_tokens + row.output_tokens,
    }


class SlowStore(MemoryStore):
    """Takes three seconds for a row."""

    async def record_usage(self, row: UsageRow) -> None:
        await trio.sleep(3)
        await super().record_usage(row)


@pytest.mark.parametrize("form", FORMS)
def test_no_slot_is_held_while_usage_is_written(form: str):
    """BerriAI/litellm#40846: with room for one and a slow account, the next is sampled meanwhile, and none is refused."""
    ended: list[float] = []

    async def over_http(served: Served) -> None:
        peer = HttpPeer(await served.open_stream())
        for _ in range(2):
            assert 200 == (await peer.create()).status
            ended.append(trio.current_time())
        await peer.stream.aclose()

    async def over_websocket(caller: Caller, lane: str) -> None:
        for _ in range(2):
            await caller.turn(stream_id=lane)
            ended.append(trio.current_time())

    async def scenario() -> None:
        limits = Limits(sampler_slots=1, max_in_flight=1)
        engine = simulated_engine(Scripted([[*say("ok"), END]]), seed=1, limits=limits, store=SlowStore())
        async with serving(engine) as served, trio.open_nursery() as nursery:
            for lane in ("a", "b", "c"):
                if form == "http":
                    nursery.start_soon(over_http, served)
                else:
                    nursery.start_soon(converse, served, over_websocket, lane)

    simulate(scenario, seed=1)

    assert [3.0] * 3 + [6.0] * 3 == ended


async def converse(served: Served, program: Any, lane: str) -> None:
    async with connect(served) as caller:
        await program(caller, lane)


def test_details_of_usage_are_true_integers_in_every_turn():
    """vllm-project/vllm#23363, ggml-org/llama.cpp#22659: a chain of three turns with reasoning, all members in each."""
    usages: list[dict[str, Any]] = []

    async def scenario() -> None:
        turn = [(Thought("hm "),), (Thought("so"),), *say("ok"), END]
        engine = simulated_engine(Scripted([turn] * 3), seed=1)
        async with serving(engine) as served:
            async with connect(served) as caller:
                parent = None
                for _ in range(3):
                    resource = await caller.turn("go", previous_response_id=parent)
                    parent = resource["id"]
                    usages.append(resource["usage"])
            await wait_idle(served)

    simulate(scenario, seed=1)

    assert [2] * 3 == [usage["output_tokens_details"]["reasoning_tokens"] for usage in usages]
    cached = [usage["input_tokens_details"]["cached_tokens"] for usage in usages]
    assert [0, *(usage["total_tokens"] for usage in usages[:-1])] == cached
    assert {int} == {type(value) for usage in usages for value in numbers_in(usage)}
    assert [6] * 3 == [len(numbers_in(usage)) for usage in usages]


def numbers_in(usage: dict[str, Any]) -> Sequence[Any]:
    nested = [value for value in usage.values() if isinstance(value, dict)]
    plain = [value for value in usage.values() if not isinstance(value, dict)]
    return [*plain, *(value for each in nested for value in each.values())]
