"""The comparison with other servers: our own in the place of each, one that is missing, one that dies, one that talks nonsense."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from demos.lab import peers, peers_servers
from demos.lab.environment import environment
from demos.lab.peers import (
    FAILED,
    HISTORY_BYTES,
    MISSING,
    PROBE,
    RUNS,
    SERVER,
    TURN,
    PeersPlan,
    config,
    history,
)
from demos.lab.peers_arms import ARMS, GROUPS
from demos.lab.peers_check import Referee
from demos.lab.peers_client import DELTA, PATH, Answer, PeerError, SseClient, WsClient, client
from demos.lab.peers_policy import ARGUMENTS, WORD, asked, talk
from demos.lab.peers_probes import BAD_REQUESTS, Asker, facts
from demos.lab.peers_servers import (
    FLOOD,
    INSTALL_AIMOCK,
    INSTALL_PYPI,
    SERVERS,
    Launch,
    NotInstalled,
    NotStarted,
    Place,
    Server,
    started,
)
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader
from engine.samplers.policy import Say, Use

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time is read from /proc")
WORDS = 30
PLAN = PeersPlan(blocks=2, paced_blocks=1, turns=2, words=WORDS)
NONSENSE = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        one, _ = server.accept()
        with one:
            if one.recv(65536):
                if sys.argv[2] == "dies":
                    sys.exit("it was too much for me")
                one.sendall(b"good morning, I am no web server\\r\\n\\r\\n")
"""
"""A server that takes connections, and is none that anybody could use."""


def nonsense(manner: str) -> Callable[[Place], Launch]:
    return lambda place: Launch(command=(sys.executable, "-c", NONSENSE, str(place.port), manner))


def no_command(_: Place) -> Launch:
    raise NotInstalled("npm install everything")


def ends_at_once(_: Place) -> Launch:
    return Launch(command=(sys.executable, "-c", "raise SystemExit('no licence')"))


STAGED: Mapping[str, Server] = {
    "ours": SERVERS["ours"],
    "ours-paced": attrs.evolve(SERVERS["ours"], name="ours-paced"),
    "ours-stepped": Server(name="ours-stepped", title="ends", launch=ends_at_once),
    "aimock": attrs.evolve(SERVERS["ours"], name="aimock", title="ours as another"),
    "llm-mock-api": Server(name="llm-mock-api", title="not there", launch=no_command),
    "litellm-aimock": Server(
        name="litellm-aimock", title="nonsense", launch=nonsense("talks"), behind="aimock"
    ),
    "litellm-ours": Server(name="litellm-ours", title="dies", launch=nonsense("dies"), behind="ours"),
}


def results_file(path: Path) -> ResultsFile:
    return ResultsFile.open(
        path,
        experiment="peers",
        config=config(quick=True, trace=None),
        seed=0,
        environment=environment(),
        began="now",
    )


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[Note]:
    """Of a run among servers of every kind."""
    path = tmp_path_factory.mktemp("peers") / "results.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "SETTLE_SECONDS", 0.0)
        patch.setattr(peers, "IDLE_SECONDS", 0.01)
        for _ in range(2):  # the second time there is nothing left to do but what failed to start
            with results_file(path) as file:
                peers.measure(file, PLAN, 0, path.parent, lambda _: None, STAGED)
    return [*ResultsReader(path).notes()]


def of(notes: list[Note], topic: str) -> list[Mapping[str, Any]]:
    return [note.detail for note in notes if note.topic == topic]


def turns(notes: list[Note], arm: str) -> list[Mapping[str, Any]]:
    return [detail for detail in of(notes, TURN) if detail["arm"] == arm]


# --- a whole run ---------------------------------------------------------------------------------------------------


def test_each_server_leaves_its_state(notes: list[Note]) -> None:
    """What is missing says how to install it, what ended says its last words, and both times alike."""
    states = [(one["server"], one["state"]) for one in of(notes, SERVER)]
    expected = [(name, RUNS) for name in STAGED]
    expected[2], expected[4] = ("ours-stepped", FAILED), ("llm-mock-api", MISSING)
    assert expected * 2 == states
    reasons = {one["server"]: one["reason"] for one in of(notes, SERVER) if "reason" in one}
    assert reasons["llm-mock-api"] == "npm install everything"
    assert "no licence" in reasons["ours-stepped"]


@pytest.mark.parametrize("arm", ["ours-sse", "ours-sse#2", "aimock-sse", "ours-ws", "aimock-ws"])
def test_a_turn_has_all_its_figures(notes: list[Note], arm: str) -> None:
    """Each measured turn: the deltas, their times in order, one connection, and nothing that the checker finds."""
    seen = turns(notes, arm)
    assert [(block, turn) for block in range(2) for turn in range(2)] == [
        (one["block"], one["turn"]) for one in seen
    ]
    for one in seen:
        assert (one["deltas"], one["events"][DELTA], one["connections"]) == (WORDS, WORDS, 1)
        assert 0 < one["first_event_ms"] <= one["first_delta_ms"] <= one["whole_ms"]
        assert one["findings"] == {}
        assert one["bytes_up"] > HISTORY_BYTES
        assert one["bytes_down_per_delta"] > len(WORD)
        assert one["usage"]["output_tokens"] == WORDS
        assert one["behind_cpu_us_per_delta"] is None


@linux
def test_cpu_time_is_that_of_the_server(notes: list[Note]) -> None:
    """Of each turn it is known, and none is free."""
    assert all(one["cpu_us_per_delta"] > 0 for arm in ("ours-sse", "ours-ws") for one in turns(notes, arm))


def test_who_continues_sends_only_what_is_new(notes: list[Note]) -> None:
    """One turn of a block, as a second would continue a longer response; the model reads the history all the same."""
    seen = turns(notes, "ours-continued")
    assert [0, 1] == [one["block"] for one in seen]
    for one in seen:
        assert one["bytes_up"] < HISTORY_BYTES / 10
        assert one["usage"]["input_tokens"] > 9_000
        assert one["findings"] == {}


def test_the_history_is_found_again_over_http_only(notes: list[Note]) -> None:
    """The optimised variant knows what the turn before the measured ones brought; a create with everything in it does not."""
    cached = {
        arm: {one["usage"]["input_tokens_details"]["cached_tokens"] > 9_000 for one in turns(notes, arm)}
        for arm in ("ours-sse", "ours-ws")
    }
    assert cached == {"ours-sse": {True}, "ours-ws": {False}}


def test_nonsense_and_a_death_are_records(notes: list[Note]) -> None:
    """Each block has one that says what came, and the others have gone on."""
    assert ["this is no HTTP/1.1" in one["error"] for one in turns(notes, "litellm-aimock")] == [True, True]
    died = turns(notes, "litellm-ours")
    # the second run starts it again, but asks it nothing: its blocks are in the file
    assert [0, 1] == [one["block"] for one in died]
    assert all("it was too much for me" in one["error"] or "no connection" in one["error"] for one in died)


def test_who_is_not_there_has_no_figures(notes: list[Note]) -> None:
    """No data is no turn, and never 0."""
    assert not turns(notes, "llm-mock-sse")
    assert not turns(notes, "ours-stepped")


def test_arms_run_in_drawn_order(notes: list[Note]) -> None:
    """Each block has one of its own."""
    flood = {name for name, arm in ARMS.items() if arm.model == FLOOD}
    orders = [
        tuple(
            dict.fromkeys(
                one["arm"] for one in of(notes, TURN) if one["block"] == block and one["arm"] in flood
            )
        )
        for block in range(2)
    ]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_what_our_server_does_is_observed(notes: list[Note]) -> None:
    """Both ways; but for what only HTTP has, and items of a type that nobody knows yet, which are let through."""
    known = {one["arm"]: {fact["name"]: fact for fact in one["facts"]} for one in of(notes, PROBE)}
    over_http = {name: fact["verdict"] for name, fact in known["ours-sse"].items()}
    assert {name for name, verdict in over_http.items() if verdict != "yes"} == {
        "refuses requests that are wrong"
    }
    assert known["ours-sse"]["refuses requests that are wrong"]["seen"] == (
        f"5 of {len(BAD_REQUESTS)} refused; an item of an unknown type: answered"
    )
    only_http = {"names its events", "gives a stored response again", "answers over WebSocket"}
    assert over_http.keys() - known["ours-ws"].keys() == only_http
    assert [fact["verdict"] for fact in known["litellm-aimock"].values()] == ["no", "no"]


# --- servers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command"),
    [("aimock", INSTALL_AIMOCK), ("llm-mock-api", INSTALL_PYPI), ("litellm-aimock", INSTALL_PYPI)],
)
def test_what_is_not_installed_names_the_command(tmp_path: Path, name: str, command: str) -> None:
    """With the exact version."""
    with pytest.raises(NotInstalled) as caught, started(SERVERS[name], tmp_path, tmp_path, WORDS):
        pytest.fail("it cannot run")
    assert str(caught.value).startswith(command)


def test_one_that_cannot_be_run_says_so(tmp_path: Path) -> None:
    """A command that is not there is a state of the peer, not a fault of the run."""
    server = Server(name="odd", title="odd", launch=lambda _: Launch(command=(tmp_path / "nothing",)))
    with pytest.raises(NotStarted, match="odd cannot be run"), started(server, tmp_path, tmp_path, WORDS):
        pytest.fail("it cannot run")


def test_one_that_takes_no_connection_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bounded wait, and it is ended."""
    monkeypatch.setattr(peers_servers, "START_SECONDS", 0.0)
    idle = (sys.executable, "-c", "print('I think'); import time; time.sleep(600)")
    server = Server(name="idle", title="idle", launch=lambda _: Launch(command=idle))
    with pytest.raises(NotStarted, match="took no connection"), started(server, tmp_path, tmp_path, WORDS):
        pytest.fail("it listens nowhere")


PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {NONSENSE!r}, sys.argv[1], "talks"])
child.wait()
"""


def runs(process_id: int) -> bool:
    """It is there, and no zombie that nobody has asked for yet."""
    stat = Path(f"/proc/{process_id}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@linux
def test_children_count_and_end_with_their_parent(tmp_path: Path) -> None:
    """The CPU time of a group is that of all its processes, and none of them is left."""

    def launch(place: Place) -> Launch:
        return Launch(command=(sys.executable, "-c", PARENT, str(place.port)))

    with started(Server(name="two", title="two", launch=launch), tmp_path, tmp_path, WORDS) as running:
        assert running.alive
        group = [*peers_servers._group(running._process.pid)]
        assert len(group) == 2
        both, alone = running.cpu_seconds(), time.clock_gettime(~running._process.pid << 3 | 2)
        assert both is not None
        assert both > alone > 0
    assert not running.alive
    give_up = time.monotonic() + 10
    while any(map(runs, group)):  # killed, and not yet gone
        assert time.monotonic() < give_up
    kept = running.cpu_seconds()
    assert kept is not None
    assert kept >= both  # what has ended keeps what it took


# --- the client ----------------------------------------------------------------------------------------------------


@contextmanager
def says(*answers: bytes) -> Iterator[int]:
    """A server that answers the n-th request of its only connection with these bytes, and then hangs up; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            one, _ = server.accept()
            with one:
                for answer in answers:
                    one.recv(1 << 20)
                    one.sendall(answer)
                one.shutdown(socket.SHUT_WR)
                while one.recv(1 << 20):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENT = b'data: {"type":"response.completed","response":{}}\n\n'
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE_CHUNKED = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVENT), EVENT)
WHOLE_SIZED = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(EVENT), EVENT)


@pytest.mark.parametrize(
    "answer", [WHOLE_CHUNKED, WHOLE_SIZED, HEAD + b"\r\n" + EVENT], ids=["chunks", "size", "open"]
)
def test_an_answer_ends_as_http_says(answer: bytes) -> None:
    """By its last chunk, by its length, or with the connection."""
    with says(answer) as port, closing(SseClient(port)) as peer:
        seen = peer.ask({"model": "m"})
    assert [one["type"] for one in seen.read()] == ["response.completed"]
    assert seen.bytes_down == len(answer)
    assert seen.first_event_s is not None
    assert seen.first_delta_s is None


def test_a_connection_is_kept() -> None:
    """Two requests, one connection."""
    with says(WHOLE_CHUNKED, WHOLE_SIZED) as port, closing(SseClient(port)) as peer:
        assert [peer.ask({}).status, peer.get(PATH).status, peer.connections] == [200, 200, 1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "it hung up without an answer"),
        (b"HELLO\r\n\r\n", "this is no HTTP/1.1"),
        (WHOLE_CHUNKED[:-9], "it hung up in the middle"),
        (WHOLE_SIZED[:-1], "it hung up in the middle"),
        (CHUNKED + b"many\r\n0\r\n\r\n", "a chunk without a size"),
        (CHUNKED + b"7\r\n\r\n0\r\n\r\n", "goes on where it should have ended"),
    ],
)
def test_what_is_no_answer_says_why(answer: bytes, message: str) -> None:
    """Each in words, and none as a figure."""
    with says(answer) as port, closing(SseClient(port)) as peer, pytest.raises(PeerError, match=message):
        peer.ask({"model": "m"})


UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


def message(text: bytes) -> bytes:
    return b"\x81%c%b" % (len(text), text)


def test_messages_up_to_the_last_event() -> None:
    """Each of them once, though they were taken apart only when the last one had come."""
    created, completed = b'{"type":"response.created"}', b'{"type":"response.completed"}'
    with says(UPGRADED, message(created) + message(completed)) as port, closing(WsClient(port)) as peer:
        seen = peer.ask({"model": "m"})
    assert [data for _, data in seen.events] == [created, completed]
    assert seen.status == 101


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"], "no WebSocket: 403 Forbidden"),
        ([UPGRADED, b""], "it hung up in the middle"),
        (
            [UPGRADED, b'\x88\x1d{"type":"response.completed"}'],
            "closed",
        ),
        ([UPGRADED, b'\xf1\x1d{"type":"response.completed"}'], "this is no WebSocket frame"),
    ],
)
def test_what_is_no_websocket_says_why(answers: list[bytes], message: str) -> None:
    """At the handshake, or after it."""
    with says(*answers) as port, pytest.raises(PeerError, match=message), closing(WsClient(port)) as peer:
        peer.ask({"model": "m"})


def test_nobody_listens() -> None:
    """Either way it is the peer's state."""
    port = peers_servers.free_port()
    for way in ("sse", "websocket"):
        with pytest.raises(PeerError, match=r"no connection|no WebSocket"):
            client(way, port, None).ask({})
    assert [fact.verdict for fact in facts(Asker("sse", port, None))] == ["no"]
    assert "no connection" in str(Asker("sse", port, None).get(PATH))


# --- what is judged ------------------------------------------------------------------------------------------------


def answer_of(*events: Mapping[str, Any], name: str = "") -> Answer:
    return Answer(
        status=200,
        events=tuple((name, orjson.dumps(event)) for event in events),
        body=b"",
        first_event_s=0.1,
        first_delta_s=None,
        whole_s=0.2,
        bytes_up=1,
        bytes_down=1,
    )


def test_findings_are_counted_by_rule() -> None:
    """A stream without numbers and without its end breaks rules, and each exchange over HTTP is judged by itself."""
    referee = Referee("sse")
    created = {
        "type": "response.created",
        "response": {"id": "resp_1", "object": "response", "status": "in_progress"},
    }
    found = referee.found({"model": "m", "input": "hello"}, answer_of(created, name="response.created"))
    assert found["N1"] == 1
    assert found == referee.found(
        {"model": "m", "input": "hello"}, answer_of(created, name="response.created")
    )
    assert "T1" in referee.found(
        {"model": "m", "input": "hello"}, answer_of(created, name="response.in_progress")
    )


# --- the design ----------------------------------------------------------------------------------------------------


def test_every_arm_has_a_server_and_a_group() -> None:
    """And who is behind another one starts before it."""
    assert {arm.server for arm in ARMS.values()} == SERVERS.keys()
    assert {arm.group for arm in ARMS.values()} == GROUPS.keys()
    names = [*SERVERS]
    assert all(
        one.behind is None or names.index(one.behind) < names.index(one.name) for one in SERVERS.values()
    )


def test_the_history_is_the_same_for_everyone() -> None:
    """Of both sides in turn, as large as it says, and of the seed alone."""
    made = history(0)
    assert made == history(0) != history(1)
    assert {"user", "assistant"} == {one["role"] for one in made}
    size = sum(len(one["content"]) for one in made)
    assert HISTORY_BYTES <= size < HISTORY_BYTES + 2_000


def test_the_model_says_so_many_words_or_calls() -> None:
    """As the message asks; who offers a tool gets a call of it first."""
    assert [Say(WORD * 7)] == [*talk(asked(7), ())]
    assert [Say(WORD)] == [*talk("hello", ())]
    calling = talk(asked(7), [{"type": "function", "name": "look"}])
    assert next(calling) == Use("look", ARGUMENTS)


def test_a_trace_is_refused_and_places_are_no_part_of_the_plan(tmp_path: Path) -> None:
    """The turn is the experiment's own; the same plan may run where peers are installed elsewhere."""
    with pytest.raises(ValueError, match="leave it out"):
        config(quick=True, trace=Path("trace.jsonl"))
    assert config(quick=True, trace=None, peers=tmp_path) == config(quick=True, trace=None)


def test_running_knows_its_last_words(tmp_path: Path) -> None:
    """In one line, and no more than a reason has room for."""
    log = tmp_path / "log"
    assert peers_servers.last_words(log) == "it wrote nothing"
    log.write_text("x" * 1_000 + "\nfor the\nrecord\n")
    assert peers_servers.last_words(log).endswith("x for the record")
    assert len(peers_servers.last_words(log)) == peers_servers.TAIL_CHARACTERS
