"""The locked scenario: an experiment of the package, whole and changed in nothing, so that two people's figures compare.

What speaks against it is found before the run and stamped into the head of the result file; what happened since (it was
resumed elsewhere, it did not end, a check failed) is found from the file when its report is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from demos.lab.plan import Plan, experiments
from demos.lab.records import Environment, Header, Note, differences
from demos.lab.report import Submission
from demos.lab.results import RESUMED, ResultsFile, ResultsReader

SEED: Final = 0
"""Of a locked run: who may choose it may choose the figure."""
FINISHED: Final = "finished"
"""Topic of the note that ends a file: all that was planned is in it."""
_MOST_TOLD: Final = 3
"""Differences from the package's file in a reason."""
QUICK_REASON: Final = "--quick is the small version"


def plan_conflicts(plan: Plan, seed: int, environment: Environment) -> tuple[str, ...]:
    """Why a run of a plan would not be the locked scenario; empty if it would."""
    return (*_changes(plan), *run_conflicts(seed, environment))


def run_conflicts(seed: int, environment: Environment) -> tuple[str, ...]:
    """The same of what is no plan's: seed and code."""
    return tuple(_of_the_run(seed, environment))


def computed_conflicts(
    seed: int, environment: Environment, *, quick: bool, trace: Path | None
) -> tuple[str, ...]:
    """The same of an experiment that has no plan."""
    changes = [QUICK_REASON] if quick else []
    changes += ["--trace brings other rollouts"] if trace is not None else []
    return (*changes, *run_conflicts(seed, environment))


def resume_conflicts(path: Path, environment: Environment) -> tuple[str, ...]:
    """Why going on with a file would not be; empty too if there is none. `ResultsError`: it is no result file."""
    if not path.exists():
        return ()
    header = ResultsReader(path).header
    elsewhere = [] if header.environment == environment else [f"{path.name} was begun in another environment"]
    return (*elsewhere, *_stamped(header, path))


def refuse(conflicts: Sequence[str]) -> None:
    """`ValueError` that names all of them."""
    if conflicts:
        raise ValueError(
            f"--locked: {'; '.join(dict.fromkeys(conflicts))}. "
            "Without --locked it runs, and its report says that it is not submission-valid, and why."
        )


def finish(file: ResultsFile) -> None:
    """Note that all that was planned is in the file; once."""
    if not any(note.topic == FINISHED for note in ResultsReader(file.path).notes()):
        file.write(Note(topic=FINISHED, detail={"rollouts": len(file.done())}))


def submission_of(paths: Sequence[Path], failures: Sequence[str]) -> Submission | None:
    """The verdict on result files whose report found these failures; None: a file has no stamp. `ResultsError`."""
    reasons: list[str] = []
    for path in paths:
        reader = ResultsReader(path)
        if reader.header.submission_valid is None:
            return None
        topics = [note.topic for note in reader.notes()]
        reasons += reader.header.conflicts
        if RESUMED in topics:
            reasons.append(f"{path.name} was resumed in another environment")
        if FINISHED not in topics:
            reasons.append(f"{path.name} does not hold all that was planned")
    if failures:
        reasons.append(f"checks failed: {', '.join(failures)}")
    return Submission(tuple(dict.fromkeys(reasons)))


def _changes(plan: Plan) -> Iterator[str]:
    if plan.name not in experiments():
        yield f"{plan.name} is no experiment of the package"
        return
    mine: Mapping[str, Any] = plan.config()
    if mine == Plan.load(plan.name).config():
        return
    if mine == Plan.load(plan.name, quick=True).config():
        yield QUICK_REASON
        return
    found = differences("", _numbered(Plan.load(plan.name).config()), _numbered(mine))
    told = "; ".join(line.removeprefix(".") for line in found[:_MOST_TOLD])
    yield f"it differs from the package's {plan.name} ({told}{'; and more' * (len(found) > _MOST_TOLD)})"


def _numbered(value: Any) -> Any:
    """With lists as tables, so that a difference within one has a name of its own."""
    if isinstance(value, list):
        value = {str(place): entry for place, entry in enumerate(value)}
    return {name: _numbered(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def _of_the_run(seed: int, environment: Environment) -> Iterator[str]:
    if seed != SEED:
        yield f"seed {seed}, and the locked scenario has {SEED}"
    if environment.commit == "unknown":
        yield "the commit is not known"
    if environment.dirty:
        yield "the checkout holds changes that are in no commit"


def _stamped(header: Header, path: Path) -> Iterator[str]:
    if header.submission_valid is None:
        yield f"{path.name} has no stamp"
    yield from header.conflicts
