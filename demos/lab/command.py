"""`suspended lab`: what a person asks for, run and reported; the exit code says whether the result may be quoted."""

import importlib.util
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TextIO

import attrs
from rich.console import Console

from demos.lab import bill_command, calibrate, computed, perfetto, scenario, spans
from demos.lab.arms import ARMS
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

_ARMS: Final = "\n".join(f"  {arm.rung:4} {arm.name:12} {arm.adds}" for arm in ARMS.values())
_EPILOG: Final = f"""\
An experiment is a file: what is compared, in which cells, how often. Its results are one JSON object a line, written as
they come; report.html beside it is made from that file alone, with its plots, tables, method and checks.

arms, each adding to the one before:
{_ARMS}
Any arm may run twice in an experiment, as NAME#2: between the two no difference may show.

examples:
  suspended lab ladder --quick              every arm in virtual time, in under a minute
  suspended lab ladder --out ladder         for real: three processes, about ten minutes
  suspended lab ladder --out ladder --resume    go on where it was stopped
  suspended lab ladder --locked             refuse whatever would make it another experiment: figures to be compared
  suspended lab together lab/ladder lab/map lab/faults    their reports as one page with a table of contents
  suspended lab alpha                       OpenAI's ten timings from their own two constants
  suspended lab run mine.toml --out mine    an experiment of your own; `suspended lab show ladder` prints one to begin with
  suspended lab bill trace.jsonl            where the time of your own rollouts went

exit codes:
  0    done; every check of the report passed or was not asked for
  1    it could not be run, or rollouts failed
  2    wrong usage, or a file that is no experiment, no result or no trace
  3    done, but a check failed: the figures are not to be quoted, and the report says why
  130  interrupted; --resume goes on
"""
_EXPERIMENT_EPILOG: Final = """\
A second run with the same seed has the same design: the same rollouts, texts and order. --resume keeps what is in the file
and runs the rest; a file of another plan or seed is refused. Reports need the extra [lab].

exit codes: 0 done; 1 failed; 2 wrong usage; 3 done, but a check failed; 130 interrupted, --resume goes on
"""
_COMPUTED_EPILOG: Final = """\
All of these but `scale` and `peers` need no wall clock: the same seed gives the same figures on each machine. Results are one JSON
object a line, and the report is made from that file alone. Reports need the extra [lab].

exit codes: 0 done; 1 failed; 2 wrong usage; 3 done, but a check failed; 130 interrupted, --resume goes on
"""
_COMPARE_EPILOG: Final = """\
The same design is the same plan and seed, rollouts, orders, turns and tokens. A headline figure is repeated where each run's
value is within the other's interval.

exit codes: 0 repeated; 1 failed; 2 no such results; 3 another design, or a headline figure outside of an interval
"""


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
    run: Callable[[Namespace, Terminal], int] = arguments.run
    try:
        return run(arguments, terminal)
    except (PlanError, ResultsError, WorkloadError, ValueError) as error:
        terminal.note(f"suspended: lab {arguments.action}: {error}")
        return USAGE
    except ImportError as error:
        terminal.note(f"suspended: lab {arguments.action}: {error.name} is not installed: {EXTRA}")
        return FAILED
    except (ChildError, OSError) as error:
        terminal.note(f"suspended: lab {arguments.action}: {error}")
        return FAILED


def make_parser() -> ArgumentParser:
    """The parser of everything after `suspended lab`."""
    parser = ArgumentParser(
        prog="suspended lab",
        description="Run the same rollout in every form, measure it in pairs, and say what is worth what.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        title="experiments and tools", metavar="NAME", dest="action", required=True
    )

    def add(
        name: str, summary: str, run: Callable[[Namespace, Terminal], int], epilog: str = ""
    ) -> ArgumentParser:
        one = actions.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=epilog,
            formatter_class=RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=run)
        return one

    for name in experiments():
        one = add(name, Plan.load(name).title, _experiment, _EXPERIMENT_EPILOG)
        one.set_defaults(plan=name)
        _add_run_arguments(one)
    for name, one_computed in computed.EXPERIMENTS.items():
        computed.add_arguments(
            add(name, one_computed.summary, _computed, one_computed.epilog + _COMPUTED_EPILOG), one_computed
        )
    own = add("run", "an experiment of your own", _experiment, _EXPERIMENT_EPILOG)
    own.add_argument("plan", metavar="FILE.toml", help="the experiment")
    _add_run_arguments(own)
    show = add("show", "print a packaged experiment", _show)
    show.add_argument("plan", metavar="NAME", choices=experiments(), help=", ".join(experiments()))
    again = add("report", "make the report again, from the result files alone", _report)
    again.add_argument("place", type=Path, metavar="DIR|FILE", help="the results; a file may be compressed")
    again.add_argument(
        "--out", type=Path, metavar="DIR", help="for report and results (default: beside them)"
    )
    old = add(
        "kept", "the results behind the README's figures: which there are, or one with its report", _kept
    )
    old.add_argument("name", metavar="NAME", nargs="?", help="of the experiment; without it they are listed")
    old.add_argument(
        "--out", type=Path, metavar="DIR", help="for results and report (default: lab/kept/NAME)"
    )
    together = add("together", "the reports of several experiments as one page", _together)
    together.add_argument(
        "places", type=Path, nargs="+", metavar="DIR", help="where the results of an experiment are"
    )
    together.add_argument(
        "--out", type=Path, default=Path("lab"), metavar="DIR", help="for index.html (default: lab)"
    )
    two = add("compare", "does a second run of an experiment repeat the first?", _compare, _COMPARE_EPILOG)
    for which in ("first", "second"):
        two.add_argument(which, type=Path, metavar=which.upper(), help="a directory of results, or the file")
    calibrate.add_arguments(add("calibrate", calibrate.SUMMARY, _calibrate, calibrate.EPILOG))
    bill_command.add_arguments(add("bill", bill_command.SUMMARY, _bill, bill_command.EPILOG))
    perfetto.add_arguments(add("perfetto", "traces as a picture for ui.perfetto.dev", _perfetto))
    spans.add_arguments(add("spans", "traces as OpenTelemetry GenAI spans and metrics", _spans))
    return parser


def _add_run_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="for results and report (default: lab/NAME)")
    add("--seed", type=int, default=0, help="of texts, workloads and orders (default: 0)")
    add("--quick", action="store_true", help="the small version: shows that it works, proves nothing")
    add("--resume", action="store_true", help="go on with the results that are there")
    add("--locked", action="store_true", help=computed.LOCKED_HELP)
    add("--plain", action="store_true", help="lines instead of a bar; so it is too without a terminal")


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


def report(directory: Path, terminal: Terminal) -> int:
    """Make the report of a directory's results and say it; the exit code."""
    _need_extra()
    from demos.lab import publish  # noqa: PLC0415  # needs the extra
    from demos.lab.reports import made  # noqa: PLC0415

    found = made(directory)
    for one in found.agreements:
        terminal.say(f"  {one}")
    page = publish.write(found.report, directory)
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
    packed = first.suffix == COMPRESSED
    if arguments.out is None and not packed and place.is_dir():
        return report(place, terminal)
    directory = arguments.out or Path("lab") / ResultsReader(first).header.experiment
    unpack(place, directory)
    return report(directory, terminal)


def _together(arguments: Namespace, terminal: Terminal) -> int:
    _need_extra()
    from demos.lab import publish  # noqa: PLC0415  # needs the extra
    from demos.lab.reports import made  # noqa: PLC0415
    from demos.lab.together import Chapter, write_together  # noqa: PLC0415

    chapters = [Chapter(made(place).report, place) for place in arguments.places]
    for one in chapters:
        publish.write(one.report, one.directory)
    terminal.say(f"report: {write_together(chapters, arguments.out)}")
    return INVALID if any(one.report.failures for one in chapters) else OK


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
