"""The same client and the same turn against other servers, next to ours: what an event costs each of them, and what each does.

A turn brings a history of 48 kB and one new message, and gets 2,000 deltas. In every block each arm once, in drawn order: a
connection is opened, a first turn, which brings the history, is thrown away, and the next ones on it are measured. A peer that
is not installed, does not start or answers wrong leaves a record that says so, and the others go on.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final, Self

import attrs

from demos.lab import peers_servers
from demos.lab.content import words
from demos.lab.peers_arms import ARMS, Arm
from demos.lab.peers_check import Referee
from demos.lab.peers_client import DELTA, Answer, Asks, PeerError, client
from demos.lab.peers_policy import WORD, asked
from demos.lab.peers_probes import Asker, Fact, facts
from demos.lab.peers_servers import FLOOD, NotInstalled, NotStarted, Running, Server
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader

SERVER, TURN, PROBE = "peers: server", "peers: turn", "peers: facts"
"""Topics of notes."""
RUNS, MISSING, FAILED = "runs", "not installed", "failed"
HISTORY_BYTES: Final = 48_000
MESSAGE_TOKENS: Final = 200
SETTLE_SECONDS: Final = 0.2
"""After a turn, for what a server does once it has answered: it is the turn's, too."""
IDLE_SECONDS: Final = 1.0
ANSWERED: Final[Mapping[str, Any]] = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": WORD, "annotations": []}],
}
"""What was said to the opening, as each measured turn repeats it: a client's history is the server's own words."""


@attrs.frozen
class PeersPlan:
    """How much is measured."""

    blocks: int = 10
    paced_blocks: int = 5
    turns: int = 3
    """Measured on one connection in a block, of arms that repeat."""
    words: int = 2_000

    @classmethod
    def quick(cls) -> Self:
        """A small one."""
        return cls(blocks=2, paced_blocks=1, turns=2)


def config(*, quick: bool, trace: Path | None, peers: Path | None = None) -> dict[str, Any]:  # noqa: ARG001  # where they lie is no part of the plan
    """As `demos.lab.computed.Computing`. ValueError: a trace was given."""
    if trace is not None:
        raise ValueError(f"--trace {trace}: peers have a turn of their own; leave it out")
    return {
        **attrs.asdict(_plan(quick)),
        "history_bytes": HISTORY_BYTES,
        "tokens_per_second": peers_servers.TOKENS_PER_SECOND,
        "settle_ms": 1e3 * SETTLE_SECONDS,
        "arms": {arm.name: {"title": arm.title, "group": arm.group} for arm in ARMS.values()},
    }


def fill(
    file: ResultsFile,
    *,
    quick: bool,
    seed: int,
    trace: Path | None,  # noqa: ARG001  # refused by `config`
    say: Callable[[str], None],
    peers: Path | None = None,
) -> None:
    """As `demos.lab.computed.Computing`. `peers`: where they are installed."""
    measure(file, _plan(quick), seed, peers or Path("peers"), say)


def _plan(quick: bool) -> PeersPlan:
    return PeersPlan.quick() if quick else PeersPlan()


# --- the run -------------------------------------------------------------------------------------------------------


def measure(
    file: ResultsFile,
    plan: PeersPlan,
    seed: int,
    peers: Path,
    say: Callable[[str], None],
    servers: Mapping[str, Server] = peers_servers.SERVERS,
) -> None:
    """Write down what the file does not hold yet. Nothing that a peer does ends it."""
    notes = [*ResultsReader(file.path).notes()]
    probed = {note.detail["arm"] for note in notes if note.topic == PROBE}
    done = {(note.detail["arm"], note.detail["block"]) for note in notes if note.topic == TURN}
    with ExitStack() as stack:
        running = _start(file, plan, peers, say, servers, stack)
        there = [arm for arm in ARMS.values() if arm.server in running]
        for arm in _told_apart(there):
            if arm.name not in probed:
                say(f"{arm.title}, {arm.way}: what it does")
                file.write(Note(topic=PROBE, detail=_facts(arm, running[arm.server])))
        for block in range(plan.blocks):
            say(f"block {block + 1} of {plan.blocks}")
            order = [arm for arm in there if arm.model == FLOOD or block < plan.paced_blocks]
            random.Random(f"{seed}/{block}").shuffle(order)  # noqa: S311  # an order, no secret
            for place, arm in enumerate(order):
                if (arm.name, block) not in done:
                    for detail in Block(plan, arm, running, seed, block).turns():
                        file.write(Note(topic=TURN, detail={**detail, "order": place}))


def _start(
    file: ResultsFile,
    plan: PeersPlan,
    peers: Path,
    say: Callable[[str], None],
    servers: Mapping[str, Server],
    stack: ExitStack,
) -> dict[str, Running]:
    """Those that start; of each a note."""
    running: dict[str, Running] = {}
    for server in servers.values():
        told: dict[str, Any] = {"server": server.name, "title": server.title, "behind": server.behind}
        try:
            one = stack.enter_context(_started(server, running, plan, peers, file.path.parent / "servers"))
        except NotInstalled as command:
            told |= {"state": MISSING, "reason": str(command)}
        except NotStarted as error:
            told |= {"state": FAILED, "reason": str(error)}
        else:
            running[server.name] = one
            told |= {"state": RUNS, "start_s": one.start_seconds, "idle_cpu_share": _idle(one)}
        say(f"{server.title}: {told['state']}" + (f": {told['reason']}" if "reason" in told else ""))
        file.write(Note(topic=SERVER, detail=told))
    return running


def _started(
    server: Server, running: Mapping[str, Running], plan: PeersPlan, peers: Path, logs: Path
) -> AbstractContextManager[Running]:
    """`NotStarted`: one that is to be behind it does not run."""
    if server.behind is not None and server.behind not in running:
        raise NotStarted(f"{server.behind}, which is to be behind it, does not run")
    return peers_servers.started(server, peers, logs, plan.words, running.get(server.behind or ""))


def _idle(one: Running) -> float | None:
    """Of a core, when nobody asks."""
    before = one.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    after = one.cpu_seconds()
    return None if before is None or after is None else (after - before) / IDLE_SECONDS


def _told_apart(arms: list[Arm]) -> Iterator[Arm]:
    """One for each server and way, of those that flood."""
    seen = set()
    for arm in arms:
        if arm.model == FLOOD and (arm.server, arm.way) not in seen:
            seen.add((arm.server, arm.way))
            yield arm


def _facts(arm: Arm, one: Running) -> dict[str, Any]:
    """By the arm's way; and whether the other way is there at all."""
    found = facts(Asker(arm.way, one.port, one.key))
    if arm.way == "sse":
        other = Asker("websocket", one.port, one.key).ask({"input": asked(20)})
        answered = other.outcome == "answered"
        found.append(Fact("answers over WebSocket", "yes" if answered else "no", other.detail))
    return {
        "arm": arm.name,
        "server": arm.server,
        "way": arm.way,
        "facts": [attrs.asdict(one) for one in found],
    }


# --- one arm in one block ------------------------------------------------------------------------------------------


class Block:
    """One connection of one arm."""

    def __init__(
        self, plan: PeersPlan, arm: Arm, running: Mapping[str, Running], seed: int, block: int
    ) -> None:
        self._plan = plan
        self._arm = arm
        self._server = running[arm.server]
        self._behind = running.get(self._server.server.behind or "")
        self._source = random.Random(f"{seed}/{block}/{arm.name}")  # noqa: S311  # texts, no secrets
        self._opening = [*history(seed), _user(asked(1))]
        self._block = block
        self._referee = Referee(arm.way)
        self._base: str | None = None
        """The response that later ones continue."""

    def turns(self) -> Iterator[dict[str, Any]]:
        """A note for each measured turn; one that says what went wrong, if something does, and then no more."""
        told = {"arm": self._arm.name, "block": self._block}
        peer: Asks | None = None
        try:
            peer = client(self._arm.way, self._server.port, self._server.key)
            self._open(peer)
            for turn in range(self._plan.turns if self._arm.repeats else 1):
                yield {**told, "turn": turn, **self._turn(peer)}
        except PeerError as error:
            ended = "" if self._server.alive else f"; it has ended: {self._server.last_words()}"
            yield {**told, "error": f"{error}{ended}"}
        finally:
            if peer is not None:
                peer.close()

    def _open(self, peer: Asks) -> None:
        """The turn that is thrown away: it brings the history, and gets a word of those that can count."""
        request = {**self._common(), "input": self._opening}
        answer = peer.ask(request)
        self._referee.found(request, answer)
        _counted(answer, None)
        if self._arm.continues:
            self._base = answer.read()[-1]["response"]["id"]

    def _turn(self, peer: Asks) -> dict[str, Any]:
        request = self._request()
        before = self._cpu()
        answer = peer.ask(request)
        time.sleep(SETTLE_SECONDS)
        after = self._cpu()
        kinds = _counted(answer, self._plan.words)
        deltas = kinds[DELTA]
        cpu, behind = (None if a is None or b is None else a - b for a, b in zip(after, before, strict=True))
        return {
            "deltas": deltas,
            "first_event_ms": _milliseconds(answer.first_event_s),
            "first_delta_ms": _milliseconds(answer.first_delta_s),
            "whole_ms": 1e3 * answer.whole_s,
            "cpu_us_per_delta": None if cpu is None else 1e6 * cpu / deltas,
            "behind_cpu_us_per_delta": None if behind is None else 1e6 * behind / deltas,
            "bytes_up": answer.bytes_up,
            "bytes_down_per_delta": answer.bytes_down / deltas,
            "events": dict(kinds),
            "connections": peer.connections,
            "usage": answer.read()[-1].get("response", {}).get("usage"),
            "findings": self._referee.found(request, answer),
        }

    def _request(self) -> dict[str, Any]:
        new = _user(words(MESSAGE_TOKENS, self._source).lstrip() + ". " + asked(self._plan.words))
        if self._base is not None:
            return {**self._common(), "previous_response_id": self._base, "input": [new]}
        return {**self._common(), "input": [*self._opening, ANSWERED, new]}

    def _common(self) -> dict[str, Any]:
        return {"model": self._arm.model, "store": False}

    def _cpu(self) -> tuple[float | None, float | None]:
        return self._server.cpu_seconds(), self._behind.cpu_seconds() if self._behind else None


def history(seed: int) -> list[dict[str, Any]]:
    """Messages of both sides, of 48 kB as JSON texts go: the same for everyone, and in every turn."""
    source = random.Random(f"{seed}/history")  # noqa: S311  # texts, no secrets
    made: list[dict[str, Any]] = []
    size = 0
    while size < HISTORY_BYTES:
        text = words(MESSAGE_TOKENS, source).lstrip()
        made.append({"role": "assistant" if len(made) % 2 else "user", "content": text})
        size += len(text)
    return made


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _counted(answer: Answer, expected: int | None) -> Counter[str]:
    """Events by kind. `PeerError`: it is another turn than was asked for; None: any number of deltas will do."""
    kinds: Counter[str] = Counter(str(event.get("type")) for event in answer.read())
    right = kinds[DELTA] > 0 if expected is None else kinds[DELTA] == expected
    if not (right and kinds["response.completed"]):
        said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4)) or repr(answer.body[:120])
        raise PeerError(
            f"status {answer.status}, expected {expected or 'some'} deltas and an end, got {said}"
        )
    return kinds


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
