"""Small faults put into the engine, each of which the simulation must find: a check that cannot fail proves nothing.

A mutant replaces one text in one module. It is run in a process of its own, where that module is compiled from the changed
source; the worlds of `tests.worlds` are played until the checker finds a rule broken that this fault breaks.

    python -m tests.engine_mutants           all of them, two at once, a line each; a number instead of two may follow
    python -m tests.engine_mutants NAME      one, in this process
"""

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs

ROOT: Final = Path(__file__).resolve().parent.parent
SEEDS: Final = 200
"""So many worlds a mutant may live in unseen, before it counts as a survivor."""


@attrs.frozen
class EngineMutant:
    """One fault: what it is, where, the text there and what it becomes, and the rules that it breaks."""

    name: str
    module: str
    old: str
    new: str
    rules: str

    @property
    def source(self) -> str:
        """Of the changed module. `ValueError`: the text is not there exactly once, so the table is out of date."""
        text = (ROOT / (self.module.replace(".", "/") + ".py")).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name!r}: its text is {text.count(self.old)} times in {self.module}")
        return text.replace(self.old, self.new)


ENGINE_MUTANTS: Final[Sequence[EngineMutant]] = (
    EngineMutant(
        "an append is not atomic: its good members count although a bad one refuses it",
        "protocol.pending",
        '            raise refusal("not_pending", call_id=item.call_id, response_id=self.response_id)\n',
        "            self.commit(Batch(tuple(seen.values())))\n"
        '            raise refusal("not_pending", call_id=item.call_id, response_id=self.response_id)\n',
        "S4 S6 S7",
    ),
    EngineMutant(
        "a response resumes with its first output",
        "engine.inbox",
        "        if not self._pending:\n            self.life.deadline",
        "        if batch.outputs:\n            for call_id in self._pending.call_ids:\n"
        "                del self._pending._awaited[call_id]\n"
        "            self._pending._open_count = 0\n            self.life.deadline",
        "S6",
    ),
    EngineMutant(
        "post-inference runs twice",
        "engine.rollout",
        "        if row.parent:\n            self.snapshot = ",
        '        self._hook("post_inference")\n        if row.parent:\n            self.snapshot = ',
        "S10",
    ),
    EngineMutant(
        "pre-inference runs again at each resume",
        "engine.rollout",
        '            self._hook("resume", outputs=[item.call_id for item in items if isinstance(item, OUTPUTS)])\n',
        '            self._hook("resume", outputs=[item.call_id for item in items if isinstance(item, OUTPUTS)])\n            self._hook("pre_inference")\n',
        "S10",
    ),
    EngineMutant(
        "numbers begin again after a pause",
        "protocol.record",
        "        if isinstance(event, OutputItemDone):\n            self.pending.finished(event.item)\n",
        "        if isinstance(event, OutputItemDone):\n            self.pending.finished(event.item)\n"
        "        if isinstance(event, events.ResponseDone):\n            self.next_number = 0\n",
        "N1",
    ),
    EngineMutant(
        "the answer to an inject takes no number",
        "protocol.record",
        "        self.next_number += 1\n        self._advance(event, after)\n        return text",
        "        self.next_number += not isinstance(event, events.InjectCreated)\n"
        "        self._advance(event, after)\n        return text",
        "N1",
    ),
    EngineMutant(
        "an event follows the terminal one",
        "engine.rollout",
        "            self._emit(_TERMINAL[row.frame](final))\n",
        "            self._emit(_TERMINAL[row.frame](final))\n"
        "            from protocol.states import ResponseState\n"
        "            ended, self.record.state = self.record.state, ResponseState.SAMPLING\n"
        "            self._emit(events.ResponseInProgress(final))\n"
        "            self.record.state = ended\n",
        "R3 R2",
    ),
    EngineMutant(
        "words that were accepted are lost",
        "engine.steering",
        "        self.submissions = (*self.submissions, Submission(submission_id, steer))\n",
        "        pass\n",
        "W15",
    ),
    EngineMutant(
        "a refused steer does not give the words back",
        "protocol.session",
        "        events.Steer(steer.previous_response_id, steer_id, steer.raw_input),\n",
        "        events.Steer(steer.previous_response_id, steer_id),\n",
        "W15",
    ),
    EngineMutant(
        "deltas lose their lane",
        "protocol.record",
        "template.delta(item_id, output_index, self.stream_id)",
        "template.delta(item_id, output_index, None)",
        "W2",
    ),
    EngineMutant(
        "a failed continuation leaves its parent in the cache",
        "engine.connection",
        "        if failed:\n            self._cache",
        "        if False:\n            self._cache",
        "W5",
    ),
    EngineMutant(
        "a failed fork evicts its parent on the other lane",
        "engine.connection",
        "self._cache.forget_continued(lane.stream_id, rollout.create.previous_response_id)",
        "self._cache.forget_response(rollout.create.previous_response_id or str())",
        "W12 W4",
    ),
    EngineMutant(
        "the latest response of a lane is forgotten",
        "engine.connection",
        "        if rollout.snapshot is not None and self",
        "        if rollout.snapshot is not None and lane.stream_id is None and self",
        "W4",
    ),
    EngineMutant(
        "the words of a create without a parent go on from the lane's latest response",
        "engine.connection",
        "        if named is not None:\n            parent = await",
        "        if named is None and rollout.record.stream_id in self._cache._latest:\n"
        "            parent = self._cache._latest[rollout.record.stream_id]\n"
        "        if named is not None:\n            parent = await",
        "W14",
    ),
    EngineMutant(
        "a second output for a call is taken, and the first one is lost",
        "protocol.pending",
        "        if not isinstance(self._awaited.get(item.call_id), CALLS) or item.call_id in seen:\n"
        '            raise refusal("has_output", call_id=item.call_id)\n',
        "        if not isinstance(self._awaited.get(item.call_id), CALLS):\n            self._open_count += 1\n",
        "S7 S4",
    ),
    EngineMutant(
        "outputs enter the context as they came",
        "protocol.pending",
        "            self._awaited[output.call_id] = output\n",
        "            del self._awaited[output.call_id]\n            self._awaited[output.call_id] = output\n",
        "S11",
    ),
    EngineMutant(
        "a pause has no end",
        "engine.inbox",
        "        self.life.deadline = trio.current_time() + seconds\n",
        "",
        "S13",
    ),
    EngineMutant(
        "a refused append is not answered",
        "engine.connection",
        '                raise refusal("nothing_open")\n',
        "                return\n",
        "S20 S8",
    ),
    EngineMutant(
        "a create that is refused is not answered",
        "engine.connection",
        "                failed = True\n                self._turn_down(lane, rollout.create, error, is_own=is_own)\n",
        "                failed = True\n",
        "R7",
    ),
    EngineMutant(
        "an error frame has no status",
        "protocol.session",
        "        return codec.encode(ErrorEvent(error.status, detail, stream_id))\n",
        "        return codec.encode(ErrorEvent(str(error.status), detail, stream_id))\n",
        "R7",
    ),
    EngineMutant(
        "a failed response has no terminal event",
        "engine.rollout",
        "        if row.frame is not None:\n",
        '        if row.frame not in (None, "failed"):\n',
        "R3",
    ),
    EngineMutant(
        "what the length cut counts as completed",
        "protocol.dialects",
        '    Ending.MAX_OUTPUT_TOKENS: EndRow("incomplete", "incomplete", reason="max_output_tokens", parent=True),\n',
        "    Ending.MAX_OUTPUT_TOKENS: _COMPLETED,\n",
        "R8",
    ),
    EngineMutant(
        "later items are missing at the end",
        "engine.rollout",
        "            output=self._assembly.items,\n",
        "            output=self._assembly.items[:2],\n",
        "I6",
    ),
    EngineMutant(
        "the second piece of a text is lost in its item",
        "engine.open_items",
        "        self._emit_pieces(pieces)\n        self._pieces += pieces\n",
        "        self._emit_pieces(pieces)\n        self._pieces += pieces[1:] if self._pieces else pieces[:1]\n",
        "C3",
    ),
    EngineMutant(
        "a part is closed twice",
        "engine.open_items",
        "        return self.done(item_id, index, 0, text), done\n",
        "        return self.done(item_id, index, 0, text), done, done\n",
        "C2",
    ),
    EngineMutant(
        "usage leaves out what was sampled before the last pause",
        "engine.account",
        "            output_tokens=self.output_tokens + segment.output_tokens,\n",
        "            output_tokens=segment.output_tokens,\n",
        "U2",
    ),
    EngineMutant(
        "a connection error takes a number of the response",
        "engine.connection",
        "        self._send(self._session.refuse(error, stream_id))\n",
        "        self._send(self._session.refuse(error, stream_id))\n"
        "        for rollout in self._open.values():\n"
        "            if rollout.record.stream_id == stream_id and rollout.record.next_number:\n"
        "                rollout.record.next_number += 1\n",
        "N1 W3",
    ),
    EngineMutant(
        "a warm-up is sampled",
        "engine.rollout",
        "        warms_up = self.create.generate is False ",
        "        warms_up = self.create.generate is None ",
        "W7",
    ),
    EngineMutant(
        "two creates of a lane run at once",
        "engine.connection",
        "        if not lane.busy:\n",
        "        if True:\n",
        "W1",
    ),
    EngineMutant(
        "a place is held for seconds after the end",
        "engine.rollout",
        '        self._rollout._hook("slot_release")',
        "        pass",
        "L1",
    ),
    EngineMutant(
        "a rollout that the connection's end abandons has no post-inference",
        "engine.rollout",
        "            if begun:\n                await self._finish()",
        "            if begun and not self.suspended:\n                await self._finish()",
        "S10",
    ),
    EngineMutant(
        "a usage row is written twice",
        "engine.rollout",
        '                self._hook("usage_record", key=self.record.response_id)\n',
        '                self._hook("usage_record", key=self.record.response_id)\n'
        '                self._hook("usage_record", key=self.record.response_id)\n',
        "U3",
    ),
    EngineMutant(
        "call ids repeat from turn to turn",
        "engine.assembly",
        '            return self._new_id("call")\n',
        '            return f"call_{len(self.items)}"\n',
        "I7",
    ),
    EngineMutant(
        "an answer waits for the next frame of the client",
        "engine.connection",
        "            self._send(record.send(accepted))\n",
        "            self._late = record.send(accepted)\n",
        "N1 S25 W15",
    ),
    EngineMutant(
        "outputs of a create need not answer every call",
        "engine.stages",
        "        return ledger.admit(items, start=start, all_answered=True)\n",
        "        return ledger.admit(items, start=start, all_answered=False)\n",
        "W13",
    ),
    EngineMutant(
        "a suspended response says done before its last item",
        "engine.rollout",
        "        if self._dialect.says_done:\n",
        "        if self._dialect.says_done and len(self._assembly.items) < 3:\n",
        "S1 S3 S24 S6 S20",
    ),
)


class _Patched(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module, and compiles it from a changed source."""

    def __init__(self, mutant: EngineMutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, _path: Any, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def get_filename(self, fullname: str) -> str:
        return str(ROOT / (fullname.replace(".", "/") + ".py"))

    def get_data(self, _path: Any) -> bytes:
        return self._mutant.source.encode()


def hunt(mutant: EngineMutant) -> str | None:
    """Where the checker found the mutant, which must be in place: the seed and what it said. None: it survived."""
    from tests.scenarios import violations_of  # only now: it imports what the mutant changes
    from tests.worlds import run_seed

    wanted = set(mutant.rules.split())
    for seed in range(SEEDS):
        for violation in violations_of(run_seed(seed)):
            if violation.rule in wanted:
                return (
                    f"{violation.rule} at seed {seed}: expected {violation.expected}, seen {violation.seen}"
                )
    return None


def run_apart(mutant: EngineMutant) -> tuple[EngineMutant, bool, str]:
    """In a process of its own: was it found, and the last line of what was said."""
    command = [sys.executable, "-m", "tests.engine_mutants", mutant.name]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return mutant, done.returncode == 0, lines[-1] if lines else "said nothing"


def run_all(at_once: int) -> Iterator[tuple[EngineMutant, bool, str]]:
    """Every mutant of the table, in its order, as they come to an end."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(run_apart, ENGINE_MUTANTS)


def main(names: Sequence[str]) -> int:
    """One by name in this process, or all, each in one of its own; 0 if all were found."""
    logging.disable()
    at_once = int(names[0]) if names and names[0].isdigit() else 2
    if names and not names[0].isdigit():
        mutant = next(mutant for mutant in ENGINE_MUTANTS if mutant.name == names[0])
        sys.meta_path.insert(0, _Patched(mutant))
        said = hunt(mutant)
        print(said or f"survived {SEEDS} worlds")
        return 0 if said else 1
    survivors = 0
    for mutant, found, said in run_all(at_once):
        survivors += not found
        print(f"{'found' if found else 'SURVIVED'}  {mutant.name}: {said}", flush=True)
    print(f"{len(ENGINE_MUTANTS) - survivors} of {len(ENGINE_MUTANTS)} mutants of the engine found")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
