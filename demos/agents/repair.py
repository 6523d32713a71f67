"""A program repairer: runs the tests, tries one small edit after the other, keeps what helps.

It has four tools and no other knowledge: each decision is made from what they answered.

1. Run the tests. Read the files the failures lead to.
2. Rank all small edits of those files: `edits` says how plausible each is, `suspicion` how near to the failures.
3. Make the best edit not yet tried, run the tests. No better: the next edit takes its place.
   At most half the failures: keep it, and go to 2.
   Fewer failures, but more than half: look at some more edits, and keep the best of them.
   (The first edit that pleases some test is often not the repair.)
4. If no edit means fewer failures, take one that lets a test get further: two slips may hide each other.
5. Stop when all tests pass, when all edits are tried, or when the tests ran `MAX_TEST_RUNS` times.
   Then put back what did not help, and say plainly what was reached.

The tests are believed and never edited.
"""

from collections.abc import Generator, Iterator
from difflib import SequenceMatcher
from typing import Any, TypeVar

import attrs

from demos.agents.edits import applied
from demos.agents.report import Report, report_of
from demos.agents.suspicion import Candidate, candidates, imported, is_test, test_files
from engine.samplers.policy import Move, Say, Script, Think, Tools, Use, program

MAX_TEST_RUNS = 60
"""The budget. Most slips are found within twenty runs; after sixty the next one is not likely to be it."""

PATIENCE = 6
"""How many more edits are tried after one that helped a little."""

MAX_FILES = 12
"""How many files are read; a failure that leads to more of them says little about each."""

NEEDED_TOOLS = ("list_files", "read_file", "write_file", "run_tests")

T = TypeVar("T")
Steps = Generator[Move | tuple[Use, ...], Any, T]


def repair(_prompt: str, tools: Tools) -> Script:
    """Repair the project behind the tools, or say why not."""
    offered = {tool.get("name") for tool in tools}
    missing = [name for name in NEEDED_TOOLS if name not in offered]
    if missing:
        yield Say(f"I cannot repair anything without these tools: {', '.join(missing)}.")
        return
    yield Say("I run the tests to see what fails.")
    yield from _Repair().work()


policy = program(repair, restart=False)


@attrs.frozen
class _Kept:
    """An edit that was kept, and the file as it was before."""

    candidate: Candidate
    before: str
    firm: bool
    """False for one that only let a test get further."""


@attrs.define
class _Repair:
    """One repair: the files as they are meant to be now, and what was tried."""

    files: dict[str, str] = attrs.Factory(dict)
    paths: list[str] = attrs.Factory(list)
    kept: list[_Kept] = attrs.Factory(list)
    tried: set[frozenset[tuple[str, str]]] = attrs.Factory(set)
    trial: tuple[str, str] | None = None
    """The file that is not as it is meant to be, and its text, while an edit is tried on it."""
    promising: set[str] = attrs.Factory(set)
    """Names of edits that helped."""
    runs: int = 0
    writes_refused: set[str] = attrs.Factory(set)
    left_changed: set[str] = attrs.Factory(set)
    """Files that could not be put back."""

    def work(self) -> Steps[None]:
        report = yield from self._run_tests()
        if not report.finished or report.passed:
            yield Say(
                f"All {report.ran} tests pass already; there is nothing to repair."
                if report.passed
                else "I cannot tell from the output which tests ran, so I change nothing."
            )
            return
        yield Say(f"{report.failed} of {report.ran} tests fail. I read what they lead to.")
        listing = yield Use("list_files", {})
        self.paths = [line.strip() for line in listing.splitlines() if line.strip()]
        while not report.passed:
            yield from self._read_all(report)
            better = yield from self._search(report)
            if better is None:
                break
            report = better
        yield from self._put_back()
        yield Say(self._conclusion(report))

    def _run_tests(self) -> Steps[Report]:
        self.runs += 1
        output = yield Use("run_tests", {})
        return report_of(output)

    def _read_all(self, report: Report) -> Steps[None]:
        """Read the files of the failing tests, what they import, and what that imports."""
        wanted = test_files(report, self.paths)
        while wanted := [path for path in wanted if path not in self.files][: MAX_FILES - len(self.files)]:
            texts = yield tuple(Use("read_file", {"path": path}) for path in wanted)
            self.files.update(zip(wanted, texts, strict=True))
            wanted = [path for text in texts for path in imported(text, self.paths)]
            wanted = list(dict.fromkeys(wanted))

    def _search(self, report: Report) -> Steps[Report | None]:
        """Try edits until one repairs enough; None if there are no more, or no more runs."""
        best: tuple[Candidate, Report] | None = None
        further: tuple[Candidate, Report] | None = None
        patience = PATIENCE
        ranked = candidates(report, self.files, frozenset(self.promising))
        yield Think(_suspicion_in_words(ranked))
        self.tried.add(frozenset(self.files.items()))
        for candidate in ranked:
            if self.runs >= MAX_TEST_RUNS or patience == 0:
                break
            outcome = yield from self._try(candidate)
            if outcome is None:
                continue
            patience -= best is not None
            if outcome.repairs(report):
                self.promising.add(candidate.name)
                if best is None or outcome.failed < best[1].failed:
                    best = candidate, outcome
                if outcome.failed * 2 <= report.failed:
                    break
                yield Say(
                    f"That helps: {outcome.failed} of {outcome.ran} fail. I look whether something helps more."
                )
            elif further is None and outcome.advances(report):
                further = candidate, outcome
        return (yield from self._settle(best, further))

    def _settle(
        self, best: tuple[Candidate, Report] | None, further: tuple[Candidate, Report] | None
    ) -> Steps[Report | None]:
        """Keep the edit that helped most, or one that let a test get further, if there is any."""
        chosen = best or further
        if chosen is None:
            return None
        candidate, outcome = chosen
        text = applied(self.files[candidate.path], candidate.edit)
        if self.trial != (candidate.path, text):
            yield from self._write(candidate.path, text)
        if best:
            yield Say(f"I keep {candidate.name}. Now {outcome.failed} of {outcome.ran} tests fail.")
        else:
            yield Say(
                f"Nothing means fewer failures. With {candidate.name} a test gets further; I go on there."
            )
        return self._keep(candidate, outcome, firm=best is not None)

    def _try(self, candidate: Candidate) -> Steps[Report | None]:
        """Make an edit and run the tests; None if it was tried before or cannot be written."""
        path = candidate.path
        text = applied(self.files[path], candidate.edit)
        state = frozenset((self.files | {path: text}).items())
        if state in self.tried or path in self.writes_refused:
            return None
        self.tried.add(state)
        yield Think(f"Perhaps {candidate.name}.")
        written = yield from self._write(path, text)
        if not written:
            return None
        return (yield from self._run_tests())

    def _write(self, path: str, text: str) -> Steps[bool]:
        """Write a file that differs from what is meant; what differed before is put back first."""
        if self.trial and self.trial[0] != path:
            yield from self._restore()
        answer = yield Use("write_file", {"path": path, "content": text})
        if answer.startswith("error:"):
            self.writes_refused.add(path)
            return False
        self.trial = path, text
        return True

    def _restore(self) -> Steps[None]:
        """Put back the file that is not as it is meant to be, if there is one."""
        if self.trial:
            path = self.trial[0]
            answer = yield Use("write_file", {"path": path, "content": self.files[path]})
            if answer.startswith("error:"):
                self.left_changed.add(path)
            self.trial = None

    def _keep(self, candidate: Candidate, outcome: Report, *, firm: bool) -> Report:
        before = self.files[candidate.path]
        self.files[candidate.path] = applied(before, candidate.edit)
        self.trial = None
        # What a test getting further was good for shows only when something is repaired after it.
        self.kept = [attrs.evolve(kept, firm=kept.firm or firm) for kept in self.kept]
        self.kept.append(_Kept(candidate, before, firm))
        return outcome

    def _put_back(self) -> Steps[None]:
        """Undo the trial that is still in its file, and the edits that came to nothing."""
        while self.kept and not self.kept[-1].firm:
            undone = self.kept.pop()
            path = undone.candidate.path
            if self.trial and self.trial[0] != path:
                yield from self._restore()
            self.trial = path, self.files[path]
            self.files[path] = undone.before
        yield from self._restore()

    def _changes(self) -> Iterator[str]:
        """Say how the lines of the files differ from what they were: edits may have undone one another."""
        first = {kept.candidate.path: kept.before for kept in reversed(self.kept)}
        for path, before in sorted(first.items()):
            old, new = before.splitlines(), self.files[path].splitlines()
            for tag, start, end, new_start, new_end in SequenceMatcher(
                None, old, new, autojunk=False
            ).get_opcodes():
                if tag != "equal":
                    was, now = " ".join(old[start:end]).strip(), " ".join(new[new_start:new_end]).strip()
                    yield f"{path} line {start + 1} from `{was}` to `{now}`"

    def _conclusion(self, report: Report) -> str:
        made = "; ".join(self._changes())
        if report.passed:
            return f"Repaired: all {report.ran} tests pass. I changed {made}. It took {self.runs} test runs."
        reason = "my budget is used up" if self.runs >= MAX_TEST_RUNS else "I know no other small edit"
        if self.left_changed:
            return (
                f"I give up, and could not put back my trial edits of {', '.join(sorted(self.left_changed))}."
            )
        rest = f"I changed {made}, which helps but is not all" if made else "The files are as they were"
        return f"I give up after {self.runs} test runs: {report.failed} of {report.ran} tests fail, and {reason}. {rest}."


def _suspicion_in_words(ranked: list[Candidate]) -> str:
    if not ranked:
        return "I see nothing in the files I could read that I know how to change."
    files = sorted({candidate.path for candidate in ranked if not is_test(candidate.path)})
    best = ranked[0]
    return f"{len(ranked)} small edits of {', '.join(files)} come to mind; line {best.edit.line} of {best.path} first."
