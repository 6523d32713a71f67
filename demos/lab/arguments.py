"""What may be said to `suspended lab`, and the help that teaches it; what is done then, `demos.lab.command` says."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from demos.lab import bill_command, calibrate, computed, perfetto, spans
from demos.lab.arms import ARMS
from demos.lab.plan import Plan, experiments

_Add = Callable[[str, str, str], ArgumentParser]
"""Adds a command: its name, its summary, and what its help ends with."""

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
The same design is the same plan and seed, rollouts, orders, turns and tokens. A headline figure is repeated where the interval
of the difference of both runs contains 0; together these intervals hold in 95 %. How many figures of the second run are within
the first's own interval is said beside it and decides nothing: of two good runs 80 to 90 % are.

exit codes: 0 repeated; 1 failed; 2 no such results; 3 another design, or a headline figure that differs
"""


def make_parser() -> ArgumentParser:
    """The parser of everything after `suspended lab`; `action` is the name of the command that was given."""
    parser = ArgumentParser(
        prog="suspended lab",
        description="Run the same rollout in every form, measure it in pairs, and say what is worth what.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        title="experiments and tools", metavar="NAME", dest="action", required=True
    )

    def add(name: str, summary: str, epilog: str) -> ArgumentParser:
        return actions.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=epilog,
            formatter_class=RawDescriptionHelpFormatter,
        )

    for group in (_add_packaged, _add_computed, _add_own, _add_reports, _add_compare, _add_tools):
        group(add)
    return parser


def _add_packaged(add: _Add) -> None:
    for name in experiments():
        one = add(name, Plan.load(name).title, _EXPERIMENT_EPILOG)
        one.set_defaults(plan=name)
        _add_run_arguments(one)


def _add_computed(add: _Add) -> None:
    for name, one in computed.EXPERIMENTS.items():
        computed.add_arguments(add(name, one.summary, one.epilog + _COMPUTED_EPILOG), one)


def _add_own(add: _Add) -> None:
    own = add("run", "an experiment of your own", _EXPERIMENT_EPILOG)
    own.add_argument("plan", metavar="FILE.toml", help="the experiment")
    _add_run_arguments(own)
    show = add("show", "print a packaged experiment", "")
    show.add_argument("plan", metavar="NAME", choices=experiments(), help=", ".join(experiments()))


def _add_reports(add: _Add) -> None:
    again = add("report", "make the report again, from the result files alone", "")
    again.add_argument("place", type=Path, metavar="DIR|FILE", help="the results; a file may be compressed")
    _add_out(again, "for report and results (default: beside them, of compressed ones lab/EXPERIMENT)")
    kept = add("kept", "the results behind the README's figures: which there are, or one with its report", "")
    kept.add_argument("name", metavar="NAME", nargs="?", help="of the experiment; without it they are listed")
    _add_out(kept, "for results and report (default: lab/kept/NAME)")
    together = add("together", "the reports of several experiments as one page", "")
    together.add_argument(
        "places",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="where the results of an experiment are; its report and pictures are written there anew",
    )
    where = "for index.html, and for results with their report whose DIR is compressed or read-only (default: lab)"
    _add_out(together, where, default=Path("lab"))


def _add_compare(add: _Add) -> None:
    two = add("compare", "does a second run of an experiment repeat the first?", _COMPARE_EPILOG)
    for which in ("first", "second"):
        two.add_argument(which, type=Path, metavar=which.upper(), help="a directory of results, or the file")


def _add_tools(add: _Add) -> None:
    calibrate.add_arguments(add("calibrate", calibrate.SUMMARY, calibrate.EPILOG))
    bill_command.add_arguments(add("bill", bill_command.SUMMARY, bill_command.EPILOG))
    perfetto.add_arguments(add("perfetto", "traces as a picture for ui.perfetto.dev", ""))
    spans.add_arguments(add("spans", "traces as OpenTelemetry GenAI spans and metrics", ""))


def _add_run_arguments(parser: ArgumentParser) -> None:
    _add_out(parser, "for results and report (default: lab/NAME)")
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of texts, workloads and orders (default: 0)")
    add("--quick", action="store_true", help="the small version: shows that it works, proves nothing")
    add("--resume", action="store_true", help="go on with the results that are there")
    add("--locked", action="store_true", help=computed.LOCKED_HELP)
    add("--plain", action="store_true", help="lines instead of a bar; so it is too without a terminal")


def _add_out(parser: ArgumentParser, what: str, default: Path | None = None) -> None:
    parser.add_argument("--out", type=Path, default=default, metavar="DIR", help=what)
