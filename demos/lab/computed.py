"""Experiments that compare no arms over the cells of a plan, each with a result file and a report of its own.

The head of such a file names the experiment under `computed`, so that `suspended lab report` knows whose it is.
"""

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import attrs

from demos.lab.environment import environment
from demos.lab.peers_servers import INSTALL
from demos.lab.records import Header
from demos.lab.results import ResultsFile
from demos.lab.scenario import computed_conflicts, finish, refuse, resume_conflicts
from demos.lab.workload import WorkloadError

if TYPE_CHECKING:
    from demos.lab.report import Report

LOCKED_HELP: Final = "refuse what would make it another experiment than the package's"
COMPUTED: Final = "computed"
"""In the head of a result file: which of them it is of."""


@attrs.frozen
class Experiment:
    """One of them."""

    name: str
    summary: str
    module: str
    """Computes: `config(…)` and `fill(…)` of `Computing`."""
    shows: str
    """Makes the report: `report_of(path)`; needs the extra."""
    directory: tuple[str, str] | None = None
    """An option of its own that names one, and its help; `config` and `fill` have an argument of that name."""
    epilog: str = ""
    """Of its help, before what holds for all."""


EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    one.name: one
    for one in (
        Experiment(
            "map",
            "the claim map: what each form saves, over speed, calls, tool time and history",
            "demos.lab.claim_map",
            "demos.lab.claim_map_report",
        ),
        Experiment(
            "ablate",
            "which part is WebSocket: what each saving is worth, alone and in any order",
            "demos.lab.ablate",
            "demos.lab.ablate_report",
        ),
        Experiment(
            "policies",
            "which model state should stay while tools run: every policy over the same rollouts",
            "demos.lab.policies",
            "demos.lab.policies_report",
        ),
        Experiment(
            "faults",
            "the connection is lost at each point of a rollout: what each form loses in time and work",
            "demos.lab.faults",
            "demos.lab.faults_report",
        ),
        Experiment(
            "scale",
            "1 to 10,000 suspended rollouts beside 16 streams: memory, lateness, resuming, and the collector",
            "demos.lab.scale",
            "demos.lab.scale_report",
        ),
        Experiment(
            "peers",
            "the same client and turn against other servers that can be installed here by name",
            "demos.lab.peers",
            "demos.lab.peers_report",
            directory=("peers", "where they are installed (default: peers)"),
            epilog=f"What is not installed is not measured, and the report says so. DIR is that of --peers:\n{INSTALL}\n\n",
        ),
    )
}


class Computing(Protocol):
    """The module of an experiment."""

    def config(self, *, quick: bool, trace: Path | None) -> dict[str, Any]:
        """What is computed, as plain data."""
        ...

    def fill(
        self, file: ResultsFile, *, quick: bool, seed: int, trace: Path | None, say: Callable[[str], None]
    ) -> None:
        """Compute what the file does not hold yet. `WorkloadError`, `OSError`."""
        ...


def add_arguments(parser: ArgumentParser, experiment: Experiment) -> None:
    """Of each of them, and its own."""
    add = parser.add_argument
    if experiment.directory is not None:
        name, told = experiment.directory
        add(f"--{name}", type=Path, metavar="DIR", help=told)
    add("--out", type=Path, metavar="DIR", help="for results and report (default: lab/NAME)")
    add("--seed", type=int, default=0, help="of the workload (default: 0)")
    add("--quick", action="store_true", help="the small version: shows that it works, proves nothing")
    add("--resume", action="store_true", help="go on with the results that are there")
    add("--trace", type=Path, metavar="FILE", help="real rollouts in the place of those drawn from quantiles")
    add("--locked", action="store_true", help=LOCKED_HELP)


def run(name: str, arguments: Namespace, path: Path, say: Callable[[str], None]) -> None:
    """Compute what the file at `path` does not hold yet. `ResultsError`, `WorkloadError`, `ValueError`, `OSError`."""
    module = cast("Computing", importlib.import_module(EXPERIMENTS[name].module))
    options = {"quick": arguments.quick, "trace": arguments.trace}
    here = environment()
    conflicts = computed_conflicts(arguments.seed, here, **options)
    if (own := EXPERIMENTS[name].directory) is not None:
        options[own[0]] = getattr(arguments, own[0])
    if arguments.locked:
        refuse([*conflicts, *resume_conflicts(path, here)])
    config = {COMPUTED: name, **module.config(**options)}
    if arguments.trace is not None and not arguments.trace.read_bytes().strip():
        raise WorkloadError(f"--trace {arguments.trace} has no rollout")
    with ResultsFile.open(
        path,
        experiment=name,
        config=config,
        seed=arguments.seed,
        environment=here,
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        conflicts=conflicts,
    ) as file:
        module.fill(file, **options, seed=arguments.seed, say=say)
        finish(file)


def reporter(header: Header) -> "Callable[[Path], Report] | None":
    """Who makes the report of a file; None: it is of none of these. The extra must be there."""
    name = header.config.get(COMPUTED)
    experiment = EXPERIMENTS.get(name) if isinstance(name, str) else None
    if experiment is None:
        return None
    made: Callable[[Path], Report] = importlib.import_module(experiment.shows).report_of
    return made
