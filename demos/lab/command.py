"""`suspended lab`: what a person asks for, run and reported; the exit code says whether the result may be quoted."""

import importlib.util
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TextIO

import attrs
from rich.console import Console

from demos.lab import bill_command, calibrate, computed, perfetto, scenario, spans
from demos.lab.arguments import make_parser
from demos.lab.environment import environment
from demos.lab.plan import Plan, PlanError, experiments, packaged_text
from demos.lab.process import ChildError
from demos.lab.progress import Bar, Lines, duration
from demos.lab.records import Clock
from demos.lab.results import COMPRESSED, RESULTS, VIRTUAL, WALL, ResultsError, ResultsReader, result_files
from demos.lab.runner import expected_seconds, run_plan
from demos.lab.workload import WorkloadError

OK, FAILED, USAGE, INVALID = 0, 1, 2, 3
EXTRA: Final = "pip install 'suspended-response[lab]'"


@attrs.frozen(kw_only=True)
class Terminal:
    """Where things are said."""

    out: TextIO
    err: TextIO
    plain: bool

    def say(self, line: str) -> None:
        """A line of the result."""
        print(line, file=self.out, flush=True)

    def note(self, line: str) -> None:
        """A line beside it."""
        print(line, file=self.err, flush=True)

    def progress(self) -> AbstractContextManager[Any]:
        """How far a run is."""
        return Lines(self.note) if self.plain else Bar(Console(file=self.err))


def lab(argv: Sequence[str], terminal: Terminal) -> int:
    """Run `suspended lab …`; the exit code. `SystemExit`: argparse has said what is wrong. `KeyboardInterrupt`."""
    arguments = make_parser().parse_args(argv)
    try:
        return COMMANDS[arguments.action](arguments, terminal)
    except (PlanError, ResultsError, WorkloadError, ValueError) as error:
        terminal.note(f"suspended: lab {arguments.action}: {error}")
        return USAGE
    except ImportError as error:
        terminal.note(f"suspended: lab {arguments.action}: {error.name} is not installed: {EXTRA}")
        return FAILED
    except (ChildError, OSError) as error:
        terminal.note(f"suspended: lab {arguments.action}: {error}")
        return FAILED


# --- experiments ---------------------------------------------------------------------------------------------------


def _experiment(arguments: Namespace, terminal: Terminal) -> int:
    _need_extra()
    plan = Plan.load(arguments.plan, quick=arguments.quick)
    directory = arguments.out or Path("lab") / plan.name
    paths = result_paths(plan, directory)
    for path in paths.values():
        _refuse_present(path, resume=arguments.resume)
    if arguments.locked:
        _refuse_conflicts(plan, arguments.seed, paths.values())
    directory.mkdir(parents=True, exist_ok=True)
    terminal.say(f"{plan.title}. {plan.question}")
    failed = 0
    terminal = attrs.evolve(terminal, plain=terminal.plain or arguments.plain)
    with terminal.progress() as progress:
        for clock, path in paths.items():
            failed += run_plan(plan, arguments.seed, clock, path, progress).failed
    if failed:
        terminal.note(f"{failed} rollouts failed; the results say why")
    code = report(directory, terminal)
    return FAILED if failed else code


def _computed(arguments: Namespace, terminal: Terminal) -> int:
    _need_extra()
    directory = arguments.out or Path("lab") / arguments.action
    path = directory / RESULTS
    _refuse_present(path, resume=arguments.resume)
    directory.mkdir(parents=True, exist_ok=True)
    computed.run(arguments.action, arguments, path, terminal.note)
    return report(directory, terminal)


def _refuse_present(path: Path, *, resume: bool) -> None:
    if path.exists() and not resume:
        raise ValueError(f"{path} is there already: --resume goes on with it; or write to another --out")


def _refuse_conflicts(plan: Plan, seed: int, paths: Iterable[Path]) -> None:
    here = environment()
    resumed = [conflict for path in paths for conflict in scenario.resume_conflicts(path, here)]
    scenario.refuse([*scenario.plan_conflicts(plan, seed, here), *resumed])


def result_paths(plan: Plan, directory: Path) -> Mapping[Clock, Path]:
    """A file for each clock."""
    if plan.clock == "both":
        return {"virtual": directory / VIRTUAL, "wall": directory / WALL}
    return {plan.clock: directory / RESULTS}


def planned_seconds(plan: Plan, seed: int = 0) -> float:
    """About how long it takes."""
    clocks: Sequence[Clock] = ("virtual", "wall") if plan.clock == "both" else (plan.clock,)
    return sum(expected_seconds(case, clock) for clock in clocks for case in plan.cases(seed))


def report(place: Path, terminal: Terminal) -> int:
    """Make the report of a directory's results, or of one file, beside them and say it; the exit code."""
    _need_extra()
    from demos.lab import publish  # noqa: PLC0415  # needs the extra
    from demos.lab.reports import made  # noqa: PLC0415

    found = made(place)
    for one in found.agreements:
        terminal.say(f"  {one}")
    page = publish.write(found.report, place if place.is_dir() else place.parent)
    publish.terminal(
        found.report,
        Console(file=terminal.out, width=None if not terminal.plain else 118, no_color=terminal.plain),
    )
    terminal.say(f"report: {page}")
    return INVALID if found.report.failures else OK


def _need_extra() -> None:
    missing = [name for name in ("numpy", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise OSError(f"{' and '.join(missing)} not installed, and reports need it: {EXTRA}")


def _report(arguments: Namespace, terminal: Terminal) -> int:
    _need_extra()
    from demos.lab.kept_results import unpack  # noqa: PLC0415  # needs the extra

    place: Path = arguments.place
    first = result_files(place)[0]
    if arguments.out is None and first.suffix != COMPRESSED:
        return report(place, terminal)
    directory = arguments.out or Path("lab") / ResultsReader(first).header.experiment
    unpack(place, directory)
    return report(directory, terminal)


def _together(arguments: Namespace, terminal: Terminal) -> int:
    _need_extra()
    from demos.lab import publish  # noqa: PLC0415  # needs the extra
    from demos.lab.reports import made  # noqa: PLC0415
    from demos.lab.together import Chapter, write_together  # noqa: PLC0415

    places = [_own_place(place, arguments.out) for place in arguments.places]
    chapters = [Chapter(made(place).report, place) for place in places]
    for one in chapters:
        publish.write(one.report, one.directory)
    terminal.say(f"report: {write_together(chapters, arguments.out)}")
    return INVALID if any(one.report.failures for one in chapters) else OK


def _own_place(place: Path, out: Path) -> Path:
    """Where the report of a directory may be: the results that are kept, or not ours to change, are written out first."""
    from demos.lab.kept_results import unpack  # noqa: PLC0415  # needs the extra

    if result_files(place)[0].suffix != COMPRESSED and os.access(place, os.W_OK):
        return place
    directory = out / place.resolve().name
    unpack(place, directory)
    return directory


def _kept(arguments: Namespace, terminal: Terminal) -> int:
    _need_extra()
    from demos.lab.kept_results import kept, listed, named, unpack  # noqa: PLC0415  # needs the extra

    if arguments.name is None:
        for one in kept():
            terminal.say(listed(one))
        return OK
    directory = arguments.out or Path("lab") / "kept" / arguments.name
    unpack(named(arguments.name).directory, directory)
    return report(directory, terminal)


def _compare(arguments: Namespace, terminal: Terminal) -> int:
    _need_extra()
    from demos.lab import repetition  # noqa: PLC0415  # needs the extra

    found = repetition.repetition(*(result_files(one)[0] for one in (arguments.first, arguments.second)))
    for line in repetition.lines(found):
        terminal.say(line)
    return OK if found.holds else INVALID


def _show(arguments: Namespace, terminal: Terminal) -> int:
    plan = Plan.load(arguments.plan)
    terminal.say(packaged_text(arguments.plan).rstrip())
    terminal.note(f"takes about {duration(planned_seconds(plan))}")
    return OK


# --- tools ---------------------------------------------------------------------------------------------------------


def _calibrate(arguments: Namespace, terminal: Terminal) -> int:
    return calibrate.run(arguments, terminal.say)


def _bill(arguments: Namespace, terminal: Terminal) -> int:
    return bill_command.run(arguments, terminal.out, terminal.err)


def _perfetto(arguments: Namespace, _terminal: Terminal) -> int:
    return perfetto.run(arguments)


def _spans(arguments: Namespace, _terminal: Terminal) -> int:
    return spans.run(arguments)


COMMANDS: Final[Mapping[str, Callable[[Namespace, Terminal], int]]] = {
    **dict.fromkeys(experiments(), _experiment),
    **dict.fromkeys(computed.EXPERIMENTS, _computed),
    "run": _experiment,
    "show": _show,
    "report": _report,
    "kept": _kept,
    "together": _together,
    "compare": _compare,
    "calibrate": _calibrate,
    "bill": _bill,
    "perfetto": _perfetto,
    "spans": _spans,
}
"""By what a person says after `suspended lab`; what comes after it, `demos.lab.arguments` has read. The value is the exit code."""
