"""Every state that small client programs can bring a session into, reached on the running engine, each trace checked.

A program is a sequence of moves: frames right and wrong, a cancellation, a pause past the deadline, the end of the connection.
The model calls two tools at once and then says hello. Programs are tried in the order of their length; one that leads into a
state which a shorter one reached is not continued, as the engine has forgotten how it got there.

    python -m tests.enumeration
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from engine.config import Limits
from engine.samplers.scripted import END, Script, Scripted, call, say
from engine.testing import MemoryTrace, Served, serving, simulate, simulated_engine
from engine.transport import TransportClosed
from protocol.invariants import Violation
from tests.scenarios import LATER_SECONDS, TERMINAL, Outcome, Talk, findings, violations_of, wait_idle

FRAMES: Final = 6
"""So many moves has the longest program."""
DEADLINE_SECONDS: Final = 100.0
SCRIPT: Final[Script] = [[(*call("f"), *call("patch", index=1)), END], [*say("Hello."), END]]
LIMITS: Final = Limits(suspend_timeout_seconds=DEADLINE_SECONDS, inject_grace_seconds=DEADLINE_SECONDS)
UNKNOWN: Final = {"type": "function_call_output", "call_id": "call_nobody", "output": "?"}
WORDS: Final = {"type": "message", "role": "user", "content": "hurry"}

State = tuple[object, ...]


class Player(Talk):
    """Makes moves, and says in which state they left the session. The calls of a create are numbered in their order."""

    async def settle(self) -> None:
        """Let the engine do all it can, and read what it says."""
        with trio.move_on_after(LATER_SECONDS):
            while True:
                await self.next()

    def last_calls(self) -> list[int]:
        """The calls of the newest response that made any."""
        homes = [home for home, _ in self.homes]
        return [place for place, home in enumerate(homes) if home == homes[-1]]

    def put_outputs(self, *which: int, extra: Sequence[Mapping[str, Any]] = ()) -> None:
        """Outputs of these calls of the newest response, in one frame, with more items after them."""
        places = self.last_calls() if self.calls else []
        outputs = [self.output(places[one]) for one in which if one < len(places)]
        self.give([*outputs, *extra] or [UNKNOWN])

    def give(self, items: Sequence[Mapping[str, Any]]) -> None:
        """As the form gives items to a response."""
        if self.form == "create":
            self.create(
                items, previous_response_id=self.response_ids[-1] if self.response_ids else "resp_none"
            )
        else:
            self.put(*items, response_id=self.response_ids[-1] if self.response_ids else "resp_none")

    def create(self, text: Any = "go", **members: Any) -> None:
        """The create form keeps nothing beyond its connection here."""
        super().create(text, **({"store": False} if self.form == "create" else {}), **members)

    def wrong_kind(self) -> None:
        """An output of the other kind for the first call."""
        made = self.calls[self.last_calls()[0]] if self.calls else {"call_id": "call_nobody"}
        self.give([{"type": "custom_tool_call_output", "call_id": made["call_id"], "output": "ok"}])

    def cancel(self) -> None:
        """As `POST …/cancel` does."""
        if self.response_ids:
            self.served.server.cancel(self.response_ids[-1])

    def state(self) -> State:
        """What of the session is still to be felt."""
        ends = {frame["response"]["id"]: frame["type"] for frame in self.frames if frame["type"] in TERMINAL}
        (connection,) = self.served.server._connections or (None,)  # the state is the point
        found: list[object] = []
        for response_id in self.response_ids:
            rollout = connection.rollout(response_id) if connection is not None else None
            if rollout is None:
                found.append(ends.get(response_id))
            else:
                pending = rollout.record.pending
                made = [
                    self.calls[place]["call_id"]
                    for place, (home, _) in enumerate(self.homes)
                    if home == response_id
                ]
                waits = tuple(call_id in pending.call_ids for call_id in made)
                found.append((rollout.record.state.name, waits, pending.held))
        known = (
            {one.response_id for one in connection._cache._latest.values()} if connection else set()
        )  # as above
        return (*found, *(response_id in known for response_id in self.response_ids))


Move = Callable[[Player], object]

MOVES: Final[Mapping[str, Move]] = {
    "create": Player.create,
    "both outputs": lambda player: player.put_outputs(1, 0),
    "first output": lambda player: player.put_outputs(0),
    "second output": lambda player: player.put_outputs(1),
    "first output twice in one batch": lambda player: player.put_outputs(0, 0),
    "an output and one for nobody": lambda player: player.put_outputs(0, extra=[UNKNOWN]),
    "an output for nobody": lambda player: player.give([UNKNOWN]),
    "an output of the wrong kind": Player.wrong_kind,
    "a word": lambda player: player.give([WORDS]),
    "an output and a word": lambda player: player.put_outputs(0, extra=[WORDS]),
    "cancel": Player.cancel,
    "deadline": lambda _player: None,
    "hang up": lambda _player: None,
}
"""What a client can do; it settles after each move. Two of them are known to `play` by name."""


@attrs.define
class Explored:
    """What was found in one form."""

    form: str
    states: set[State] = attrs.field(factory=set)
    programs: int = 0
    records: int = 0
    faults: list[str] = attrs.field(factory=list)


def play(form: str, program: Sequence[str]) -> tuple[State, Outcome]:
    """Make the moves on a fresh server; the state they lead to, and what was left when the client had gone."""
    outcome, states = Outcome(), []

    async def run() -> None:
        outcome.sampler = Scripted(SCRIPT)
        outcome.engine = simulated_engine(
            outcome.sampler, seed=1, limits=LIMITS, on_report=outcome.reports.append
        )
        trace = MemoryTrace()
        async with serving(outcome.engine, trace=trace) as served:
            states.append(await _converse(form, program, served))
            await wait_idle(served)
        outcome.lines = trace.lines()

    simulate(run, seed=1)
    return states[0], outcome


async def _converse(form: str, program: Sequence[str], served: Served) -> State:
    try:
        async with served.connect_raw(append=form == "append") as raw:
            player = Player(raw, form, served)
            for name in program:
                if name == "hang up":
                    return ("gone",)
                MOVES[name](player)
                await player.settle()
                if name == "deadline":
                    await trio.sleep(DEADLINE_SECONDS)
                    await player.settle()
            return player.state()
    except TransportClosed as error:
        return ("closed", error.code)


def explore(form: str, frames: int = FRAMES) -> Explored:
    """All programs of up to so many frames, as far as they lead into new states."""
    explored = Explored(form)
    frontier: list[tuple[str, ...]] = [()]
    for _ in range(frames):
        frontier = [longer for program in frontier for longer in _continued(explored, program)]
    return explored


def _continued(explored: Explored, program: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name in MOVES:
        longer = (*program, name)
        state, outcome = play(explored.form, longer)
        explored.programs += 1
        explored.records += len(outcome.lines)
        said: list[Violation | str] = [*violations_of(outcome), *findings(outcome, may_be_empty=True)]
        explored.faults += [f"{explored.form}: {', '.join(longer)}: {fault}" for fault in said]
        if state not in explored.states:
            explored.states.add(state)
            if name != "hang up":
                yield longer


def main() -> int:
    """Explore every form and print the counts."""
    logging.disable()
    faults: list[str] = []
    for form in ("append", "inject", "create"):
        found = explore(form)
        print(
            f"{form}: {len(found.states)} states by programs of up to {FRAMES} moves out of {len(MOVES)}; "
            f"{found.programs} programs, {found.records} records checked, {len(found.faults)} faults",
            flush=True,
        )
        faults += found.faults
    print(*faults[:20], sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
