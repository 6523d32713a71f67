"""The result files behind the README's figures, which come with the package so that whoever quotes them can open them.

Each experiment has a folder of its own, with what its run wrote, compressed. `demos.lab.keep` makes them; `complaints`
says what is wrong with one, and a test holds that nothing is.
"""

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import orjson

from demos.lab import computed
from demos.lab.computed import COMPUTED
from demos.lab.fingerprint import CHECKOUT, Age, age
from demos.lab.plan import Plan, experiments
from demos.lab.records import Header, differences
from demos.lab.report import Report
from demos.lab.reports import made
from demos.lab.results import (
    COMPRESSED,
    RESULTS,
    VIRTUAL,
    WALL,
    ResultsReader,
    plain_bytes,
    result_files,
)

if TYPE_CHECKING:
    from demos.lab.computed import Computing

KEPT: Final = Path(__file__).parent / "kept"
MOST_CHANGED: Final = 1 / 3
"""Of the lines that an experiment runs, in files that have changed since: a change touches one file of a hundred and more, so
this much is a rebuilt engine. Less would ask for half an hour of measuring after each day of work, and be switched off."""
RUNNER: Final = "demos.lab.runner"
"""The first module of experiments that are plans."""
_MOST_DIFFERENCES: Final = 3
AGAIN: Final = "`suspended lab {} --out DIR`, `python -m demos.lab.keep DIR`, `python -m tests.readme`"
"""How figures are renewed."""


@attrs.frozen
class Kept:
    """What is kept of one experiment."""

    directory: Path

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.directory.name

    @property
    def header(self) -> Header:
        """Of the file that the report is of. `ResultsError`, `OSError`."""
        return ResultsReader(result_files(self.directory)[0]).header

    @property
    def digest(self) -> str:
        """A short name of the contents: whoever has the same has the same results. `OSError`."""
        whole = hashlib.sha256()
        for path in result_files(self.directory):
            whole.update(plain_bytes(path))
        return whole.hexdigest()[:12]

    @property
    def command(self) -> str:
        """Measures the same anew."""
        return f"suspended lab {self.name}"


def kept(folder: Path = KEPT) -> list[Kept]:
    """All there are, by name."""
    return [Kept(path) for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []


def named(name: str, folder: Path = KEPT) -> Kept:
    """`ValueError`: nothing of that name is kept."""
    found = {one.name: one for one in kept(folder)}
    if name not in found:
        there = ", ".join(found) or "none yet"
        raise ValueError(f"no results of {name!r} are kept; there are: {there}")
    return found[name]


def listed(one: Kept) -> str:
    """A line for people: what it is of, and how much of that is another by now. `ResultsError`, `OSError`."""
    header = one.header
    since = f"{age_of(header).share:.0%} of its lines in files that changed since"
    return (
        f"{one.name}: {header.began[:10]}, commit {header.environment.commit[:10]}, {since}; {one.directory}"
    )


def unpack(place: Path, directory: Path) -> None:
    """Write the result files of a place into a directory, as they were before they were kept.

    `ValueError`: something else lies there; nothing was written. `ResultsError`: one of them is none. `OSError`.
    """
    contents = {
        directory / _plain_name(path): plain_bytes(ResultsReader(path).path) for path in result_files(place)
    }
    for path, content in contents.items():
        if path.exists() and path.read_bytes() != content:
            raise ValueError(f"{path} holds other results: choose another --out")
    directory.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        path.write_bytes(content)


def _plain_name(path: Path) -> str:
    """By which it is found in its directory."""
    name = path.name.removesuffix(COMPRESSED)
    return name if name in (RESULTS, WALL, VIRTUAL) else RESULTS


# --- what is wrong with it -----------------------------------------------------------------------------------------


def complaints(directory: Path, root: Path = CHECKOUT) -> list[str]:
    """Why the results in a directory are not to stand in the README; empty if they may. Needs the extra.

    `root`: where the code is that they should be of. `OSError`, and `ResultsError` for what holds no results.
    """
    found = [complaint for path in result_files(directory) for complaint in _of_file(path, root)]
    return found or [*_of_report(made(directory).report)]


def age_of(header: Header, root: Path = CHECKOUT) -> Age:
    """How much of the code that this run measured is another by now. `OSError`."""
    return age(header.environment.code, first_module(header), root)


def first_module(header: Header) -> str:
    """From which all that the experiment runs is reached."""
    own = computed.EXPERIMENTS.get(header.experiment)
    return own.module if own else RUNNER


def _of_file(path: Path, root: Path) -> Iterator[str]:
    reader = ResultsReader(path)
    for _ in reader:
        continue
    if reader.torn_bytes:
        yield f"{path.name} ends in a torn line: go on with it (--resume)"
    header = reader.header
    yield from _other_plan(header)
    again = AGAIN.format(header.experiment)
    if not header.environment.code:
        yield f"{path.name} does not say which code it measured: {again}"
        return
    found = age_of(header, root)
    if found.share > MOST_CHANGED:
        yield (
            f"{found.changed_lines:,} of the {found.lines:,} lines that {path.name} measured stand in files that have "
            f"changed since ({len(found.changed)}), more than {MOST_CHANGED:.0%}: {again}"
        )


def _of_report(report: Report) -> Iterator[str]:
    yield from (f"its report is invalid: {check.name} ({check.detail})" for check in report.failures)
    if report.submission is None:
        yield "it does not say whether it was begun as the locked scenario: run it again"
    elif not report.failures:
        yield from (f"it is not submission-valid: {reason}" for reason in report.submission.reasons)


def _other_plan(header: Header) -> Iterator[str]:
    """Whoever runs the command that stands beside a figure must run what it is of."""
    asks = _asked(header)
    if asks is None:
        yield f"{header.experiment!r} is no experiment of the package"
        return
    found = [line.removeprefix(".") for line in differences("", header.config, asks())]
    if found:
        more = f"; and {len(found) - _MOST_DIFFERENCES} more" if len(found) > _MOST_DIFFERENCES else ""
        yield (
            f"it is not what `suspended lab {header.experiment}` runs today: "
            f"{'; '.join(found[:_MOST_DIFFERENCES])}{more}"
        )


def _asked(header: Header) -> Callable[[], Mapping[str, Any]] | None:
    """What the experiment of that name would have in its head, without options."""
    name = header.experiment
    if name in computed.EXPERIMENTS:
        return lambda: _computed_config(name)
    if name in experiments():
        return lambda: {**Plan.load(name).config(), **_clock(Plan.load(name), header)}
    return None


def _clock(plan: Plan, header: Header) -> Mapping[str, Any]:
    """Where both clocks run, each file names its own."""
    return {"clock": header.config.get("clock")} if plan.clock == "both" else {}


def _computed_config(name: str) -> Mapping[str, Any]:
    module = cast("Computing", importlib.import_module(computed.EXPERIMENTS[name].module))
    config = {COMPUTED: name, **module.config(quick=False, trace=None)}
    plain: Mapping[str, Any] = orjson.loads(orjson.dumps(config))
    return plain
