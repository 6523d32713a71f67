"""Compaction over HTTP: inside a response, in both variants, and items that outlive the server that made them."""

import http.client
import re
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.door import ANYBODY
from engine.samplers.base import Prompt
from engine.samplers.scripted import END, Scripted, call, say
from engine.seals import SealError, Seals, secret_beside
from engine.testing import serving, simulated_engine
from tests.command import Running, suspended
from tests.http_peer import HttpPeer
from tests.wire import simulate

VARIANTS = pytest.mark.parametrize("variant", ["naive", "optimised"])
MANAGED: dict[str, Any] = {"context_management": [{"type": "compaction", "compact_threshold": 400}]}
LONG = "word " * 600
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


class Hearing:
    """Answers, with a call where a tool is offered and none was answered; remembers the texts of each context."""

    def __init__(self) -> None:
        self.heard: list[list[str]] = []

    def open(self, prompt: Prompt) -> Any:
        heard = self.heard
        segment = [call("f", call_id="call_1"), END] if prompt.tools else [*say("so it is"), END]
        inner = Scripted([segment]).open(prompt)

        class Sampling:
            aclose = inner.aclose

            def sample(self, appended: Any) -> Any:
                heard.append([item.type for item in appended.items])
                return inner.sample(appended)

        return Sampling()


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def kinds_of(resource: dict[str, Any]) -> list[str]:
    """The types of its output items."""
    return [item["type"] for item in resource["output"]]


def talk(variant: str, program: Any) -> tuple[Hearing, Any]:
    """Run a program with a client of a server in memory; what the sampler heard, and the cache's statistics."""
    sampler = Hearing()

    async def run() -> Any:
        engine = simulated_engine(sampler, seed=1, http_variant=variant)
        async with serving(engine) as served:
            await program(HttpPeer(await served.open_stream()))
            return served.server.prefixes.statistics()

    return sampler, simulate(run)


async def made_by(client: HttpPeer, **members: Any) -> dict[str, Any]:
    answer = await client.create(**members)
    assert answer.status == 200, answer.body
    resource: dict[str, Any] = answer.json
    return resource


# --- inside a response -------------------------------------------------------------------------------------------------


@VARIANTS
def test_a_history_that_is_too_long_is_compacted_and_goes_on(variant: str) -> None:
    """The item comes first, what is sampled sees the short context, and the next request needs no other."""

    async def program(client: HttpPeer) -> None:
        asked = [user(LONG), user("hi")]
        first = await made_by(client, input=asked, **MANAGED)
        assert kinds_of(first) == ["compaction", "message"]
        assert first["usage"]["input_tokens"] <= 200
        cut = [*first["output"], user("more")]
        whole = [*asked, *cut]
        for history in (cut, whole):
            second = await made_by(client, input=history, **MANAGED)
            assert kinds_of(second) == ["message"]
            assert second["usage"]["input_tokens"] <= 400

    sampler, statistics = talk(variant, program)

    assert sampler.heard[1] == sampler.heard[2] == [*sampler.heard[0], "message", "message"]
    assert statistics.hits == (2 if variant == "optimised" else 0)


@VARIANTS
def test_a_chain_by_id_is_compacted_too(variant: str) -> None:
    """What a continuation brings is counted with all that it continues, and only the short context is stored."""

    async def program(client: HttpPeer) -> None:
        first = await made_by(client, input=LONG)
        second = await made_by(client, input="two", previous_response_id=first["id"], **MANAGED)
        third = await made_by(client, input="three", previous_response_id=second["id"], **MANAGED)
        assert [kinds_of(each) for each in (first, second, third)] == [
            ["message"],
            ["compaction", "message"],
            ["message"],
        ]
        assert second["previous_response_id"] == first["id"]
        assert third["usage"]["input_tokens"] <= 400 < first["usage"]["input_tokens"]

    talk(variant, program)


@VARIANTS
def test_a_continuation_may_bring_an_item(variant: str) -> None:
    """A compaction item beside a parent stands for its items, and takes nothing of the parent away."""

    async def program(client: HttpPeer) -> None:
        first = await made_by(client, input=[user(LONG), user("hi")], **MANAGED)
        fresh = await made_by(client, input="elsewhere")
        item = first["output"][0]
        alone, both = [
            await made_by(client, input=[item, user("and?")], **parent, **MANAGED)
            for parent in ({}, {"previous_response_id": fresh["id"]})
        ]
        parent_alone = await made_by(client, input=[], previous_response_id=fresh["id"])
        sizes = [each["usage"]["input_tokens"] for each in (alone, parent_alone, both)]
        assert sizes[0] + sizes[1] == sizes[2]

    talk(variant, program)


@VARIANTS
def test_the_call_of_a_compacted_response_is_answered(variant: str) -> None:
    """A call that a compacted response makes is open for the next request, by id and by history."""

    async def program(client: HttpPeer) -> None:
        members = {"tools": [TOOL], **MANAGED}
        first = await made_by(client, input=[user(LONG), user("call")], **members)
        assert kinds_of(first) == ["compaction", "function_call"]
        output = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}
        by_id = await made_by(client, input=[output], previous_response_id=first["id"], **MANAGED)
        by_history = await made_by(client, input=[*first["output"], output], **MANAGED)
        assert kinds_of(by_id) == kinds_of(by_history) == ["message"]
        assert by_id["usage"]["input_tokens"] == by_history["usage"]["input_tokens"]

    talk(variant, program)


@VARIANTS
def test_the_count_is_that_of_the_compacted_context(variant: str) -> None:
    """`input_tokens` counts what the response would begin with."""

    async def program(client: HttpPeer) -> None:
        body = {"model": "m", "input": [user(LONG), user("hi")], **MANAGED}
        counted = (await client.ask("POST", "/v1/responses/input_tokens", body)).json["input_tokens"]
        assert counted == (await made_by(client, **body))["usage"]["input_tokens"]

    talk(variant, program)


@VARIANTS
def test_what_is_listed_is_what_was_sent(variant: str) -> None:
    """The input items of a compacted response are the client's own."""

    async def program(client: HttpPeer) -> None:
        first = await made_by(client, input=[user(LONG), user("hi")], **MANAGED)
        second = await made_by(client, input=[first["output"][0], user("more")], **MANAGED)
        for made, kinds in ((first, ["message", "message"]), (second, ["compaction", "message"])):
            listed = await client.ask("GET", f"/v1/responses/{made['id']}/input_items?order=asc")
            assert [item["type"] for item in listed.json["data"]] == kinds

    talk(variant, program)


@VARIANTS
def test_the_stream_shows_the_item_first(variant: str) -> None:
    """As the first item, whole, before anything that is sampled."""

    async def program(client: HttpPeer) -> None:
        answer = await client.create(input=[user(LONG), user("hi")], stream=True, **MANAGED)
        kinds = [kind.removeprefix("response.") for kind, _ in answer.events[:5]]
        item = "output_item.added", "output_item.done"
        assert kinds == ["created", "in_progress", *item, "output_item.added"]
        assert answer.events[3][1]["item"]["type"] == "compaction"

    talk(variant, program)


@VARIANTS
def test_a_bad_item_or_threshold_is_refused_by_its_place(variant: str) -> None:
    """The place is the client's, also where what comes before is left out; so it is for a bad output."""

    async def program(client: HttpPeer) -> None:
        forged = {"type": "compaction", "encrypted_content": "AQ=="}
        for members in ({}, MANAGED):
            answer = await client.create(input=[user("a"), user("b"), forged], **members)
            assert (answer.status, answer.error["param"]) == (400, "input[2].encrypted_content")
        answer = await client.create(context_management=[{"type": "compaction", "compact_threshold": 0}])
        assert answer.error["param"] == "context_management[0].compact_threshold"
        lost = {"type": "function_call_output", "call_id": "call_9", "output": "ok"}
        answer = await client.create(input=[user(LONG), lost], **MANAGED)
        assert "call_9" in answer.error["message"]

    talk(variant, program)


# --- after a restart ---------------------------------------------------------------------------------------------------


def asked(store: Path, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The answer of a server of its own over this file; it is killed afterwards."""
    with Running("serve", "--port", "0", "--store", store, "--sampler", "paced:calls=0,words=2") as server:
        found = re.search(r":(\d+)/", server.line_with("serving"))
        assert found is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        connection.request("POST", path, orjson.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        told = answer.status, orjson.loads(answer.read())
        connection.close()
    return told


def test_an_item_is_read_by_the_next_server_over_the_same_file(tmp_path: Path) -> None:
    """The secret lies beside the store, for its owner's eyes; a server over another file refuses the item."""
    store, elsewhere = tmp_path / "store.db", tmp_path / "other.db"
    history = {"model": "m", "input": [user("remember the milk")]}
    _, compacted = asked(store, "/v1/responses/compact", history)
    going_on = {"model": "m", "input": [*compacted["output"], user("and?")]}
    assert asked(store, "/v1/responses", going_on)[0] == 200
    status, body = asked(elsewhere, "/v1/responses", going_on)
    assert (status, body["error"]["param"]) == (400, "input[0].encrypted_content")
    assert stat.S_IMODE((tmp_path / "store.db.secret").stat().st_mode) == 0o600


def test_the_secret_of_a_file_is_made_once(tmp_path: Path) -> None:
    """The same for the same file, another one for another, and nothing else is left there."""
    token = Seals(secret_beside(tmp_path / "a.db")).seal({"n": 1}, ANYBODY)
    assert Seals(secret_beside(tmp_path / "a.db")).open(token, ANYBODY) == {"n": 1}
    with pytest.raises(SealError):
        Seals(secret_beside(tmp_path / "b.db")).open(token, ANYBODY)
    assert {path.name for path in tmp_path.iterdir()} == {"a.db.secret", "b.db.secret"}


def test_where_files_have_no_links_the_secret_is_made_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file, for its owner's eyes, and nothing beside it."""

    def refuse(_self: Path, _target: Path) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    secret = secret_beside(tmp_path / "a.db")
    (kept,) = tmp_path.iterdir()
    assert (kept.read_bytes(), stat.S_IMODE(kept.stat().st_mode)) == (secret, 0o600)


def test_a_damaged_secret_is_not_replaced(tmp_path: Path) -> None:
    """The server does not start, and says which file it is and what would be lost."""
    secret = tmp_path / "store.db.secret"
    secret.write_bytes(b"short")
    process = suspended("serve", "--port", "0", "--store", tmp_path / "store.db")
    assert process.returncode != 0
    assert str(secret) in process.stderr
    assert "no compaction item" in process.stderr
    assert secret.read_bytes() == b"short"


# --- which variant ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flag", "hits"), [("optimised", 1), ("naive", 0)])
def test_serve_takes_the_variant(flag: str, hits: int) -> None:
    """`--http-variant` decides whether a history is recognised: the second request says what was not read again."""
    words = ("serve", "--port", "0", "--http-variant", flag, "--sampler", "paced:calls=0,words=2")
    with Running(*words) as server:
        found = re.search(r":(\d+)/", server.line_with("serving"))
        assert found is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        history: list[Any] = [user("hi")]
        for _ in range(2):
            body = orjson.dumps({"model": "m", "input": history})
            connection.request("POST", "/v1/responses", body, {"content-type": "application/json"})
            made = orjson.loads(connection.getresponse().read())
            history += [*made["output"], user("more")]
        connection.close()
    assert bool(made["usage"]["input_tokens_details"]["cached_tokens"]) == bool(hits)
