"""An experiment as a file: what is compared, over which cells, how often, and in which order.

    title = "…"                     # and `question`: what it answers
    clock = "wall"                  # wall, virtual, or both: the same rollouts in each
    arms = ["optimised", "append", "optimised#2"]
    baseline = "optimised"
    headline = "append"             # the arm that the report's sentences are about
    seeds = [0]                     # of the workload; added to the seed of the run
    repeats = 5                     # blocks: in each every arm runs once, in an order drawn from the seed

    [work]
    source = "uniform"              # uniform, alpha, built-in or file (`demos.lab.workload`)
    spread = 0.3                    # uniform: each block has a rollout of its own, its lengths drawn so far around the cell's

    [cell]                          # an axis is a value or a list; the cells are the product
    tokens_per_second = [65, 1000]
    rtt_ms = 30
    tool = "Z"                      # Z none, A as recorded, B drawn; or seconds

    [[cells]]                       # instead of one product, several: each with what it changes of [cell]
    [model]                         # what the simulated model costs
    [quick]                         # what `--quick` changes; its `cells` stand for all others

The product, the blocks and their order come from file and seed alone: a second run has the same design.
"""

import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, Self

import attrs
import orjson

from demos.lab import plan_fields as fields
from demos.lab.arms import arm_of
from demos.lab.overhead import alpha_work
from demos.lab.plan_fields import PlanError
from demos.lab.records import CellValue, PairKey, RolloutKey, cell_key
from demos.lab.workload import SCENARIOS, Work, built_in, read, selected, uniform, varied, with_scenario

__all__ = ["Case", "Cell", "ModelCosts", "Plan", "PlanError", "WorkSource", "experiments"]

FOLDER: Final = "experiments"
_DRAWN_FOR_EACH: Final = 12
"""Rollouts for each that is wanted: most are too long where their context is bounded."""
Clocks = Literal["wall", "virtual", "both"]


@attrs.frozen(kw_only=True)
class ModelCosts:
    """What the simulated model costs besides decoding."""

    first_token_ms: float = 0.0
    """Before the first token of each segment."""
    prefill_tokens_per_second: float = 100_000.0
    tick_ms: float = 1.0
    """Its engine step: tokens leave at the first one when they are due."""
    overhead_ms: Mapping[str, float] = attrs.field(factory=dict)
    """By arm, for each model call: what a form is taken to cost elsewhere. Where it is given, every arm has one."""

    def before_first_token_seconds(self, arm: str) -> float:
        """In this arm."""
        return (self.first_token_ms + self.overhead_ms.get(arm_of(arm).name, 0.0)) / 1e3


@attrs.frozen(kw_only=True)
class Cell:
    """One combination of the axes."""

    axes: Mapping[str, CellValue]
    """As recorded."""
    repeats: int
    model: ModelCosts

    @property
    def tokens_per_second(self) -> float:
        """The model's speed."""
        return float(self.axes["tokens_per_second"])

    @property
    def rtt_seconds(self) -> float:
        """Of the network between client and server."""
        return float(self.axes["rtt_ms"]) / 1e3


@attrs.frozen(kw_only=True)
class WorkSource:
    """Where the rollouts are from."""

    source: str
    count: int = 1
    min_calls: int = 1
    max_calls: int = 91
    max_context_tokens: int = 0
    """Longer ones are left out; 0 = none is."""
    path: str | None = None
    spread: float = 0.0
    """Of uniform ones: how far the lengths of a block's rollout are drawn around those of the cell; 0 = all are the same."""

    def works(self, axes: Mapping[str, CellValue], seed: int, block: int) -> list[Work]:
        """Those of a block in a cell. `WorkloadError`, `PlanError`: the file."""
        tool = axes["tool"]
        if self.source == "uniform":
            seconds = 0.0 if isinstance(tool, str) else float(tool)
            sizes = {name: int(axes[name]) for name in fields.SIZES}
            work = uniform(**sizes, tool_seconds=seconds)
            if self.spread:
                work = varied(work, self.spread, block, seed)
            return [with_scenario(work, tool, seed)] if tool in SCENARIOS else [work]  # type: ignore[arg-type]  # one of them
        if self.source == "alpha":
            return [alpha_work()]
        if self.source == "built-in":
            bounds = {"min_calls": self.min_calls, "max_calls": self.max_calls}
            return self._small(built_in(self.count * _DRAWN_FOR_EACH, seed, scenario=tool, **bounds), seed)  # type: ignore[arg-type]
        try:
            found = read(Path(self.path or ""), scenario=tool, seed=seed, min_calls=self.min_calls)  # type: ignore[arg-type]
        except OSError as error:
            raise PlanError(f"work.path is {self.path!r}: {error.strerror}") from error
        if len({work.name for work in found}) < len(found):
            raise PlanError(
                f"work.path is {self.path!r}: two of its rollouts have the same id; name them apart"
            )
        return self._small([work for work in found if work.calls <= self.max_calls], seed)

    def _small(self, works: Sequence[Work], seed: int) -> list[Work]:
        most = self.max_context_tokens
        small = [w for w in works if not most or max(w.contexts()) <= most]
        if not small:
            raise PlanError("work has no rollout with so many calls and tokens of context as it asks for")
        return selected(small, self.count, seed)


@attrs.frozen(kw_only=True)
class Case:
    """One rollout that is to be run."""

    cell: Cell
    work: Work
    seed: int
    block: int
    order: int
    arm: str

    @property
    def key(self) -> RolloutKey:
        """What it is told apart by in the result file."""
        pair = PairKey(cell_key(self.cell.axes), self.work.name, self.seed, self.block)
        return RolloutKey(pair, self.arm)


@attrs.frozen(kw_only=True)
class Plan:
    """An experiment, read and checked."""

    name: str
    title: str
    question: str
    clock: Clocks
    arms: tuple[str, ...]
    baseline: str
    headline: str
    """The arm that the report's sentences are about."""
    seeds: tuple[int, ...]
    work: WorkSource
    cells: tuple[Cell, ...]
    timeout_s: float
    """Of one rollout, by its clock; a longer one has failed."""

    @classmethod
    def load(cls, name_or_path: str, *, quick: bool = False) -> Self:
        """A packaged experiment, or a file. `PlanError`, which names file and field."""
        path = Path(name_or_path)
        if path.suffix == ".toml":
            try:
                return cls.parse(path.read_text(), path.stem, path.name, quick=quick)
            except (OSError, UnicodeError) as error:
                raise PlanError(f"{path}: {error}") from error
        return cls.parse(packaged_text(name_or_path), name_or_path, f"{name_or_path}.toml", quick=quick)

    @classmethod
    def parse(cls, text: str, name: str, file: str, *, quick: bool = False) -> Self:
        """`file` is named in errors. `PlanError`."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PlanError(f"{file}: no TOML ({error})") from error
        values = fields.checked(table, file, quick=quick)
        work = WorkSource(**values.pop("work"))
        cells = tuple(
            Cell(axes=axes, repeats=repeats, model=ModelCosts(**model))
            for axes, repeats, model in values.pop("products")
        )
        return cls(name=name, work=work, cells=cells, **values)

    def cases(self, seed: int) -> Iterator[Case]:
        """All rollouts in the order in which they run: block by block, so that a run that is stopped is balanced.

        `WorkloadError`, `PlanError`: there are none, or their file is wrong.
        """
        for block in range(max(cell.repeats for cell in self.cells)):
            for own_seed in self.seeds:
                for cell in self.cells:
                    if block < cell.repeats:
                        yield from self._block(cell, seed + own_seed, block, seed)

    def _block(self, cell: Cell, seed: int, block: int, run_seed: int) -> Iterator[Case]:
        for work in self.work.works(cell.axes, seed, block):
            place = orjson.dumps([run_seed, cell_key(cell.axes), work.name, seed, block]).decode()
            arms = random.Random(place).sample(self.arms, len(self.arms))  # noqa: S311  # a design, no secret
            for order, arm in enumerate(arms):
                yield Case(cell=cell, work=work, seed=seed, block=block, order=order, arm=arm)

    def config(self) -> dict[str, Any]:
        """The whole plan as plain data, for the head of the result file."""
        plain: dict[str, Any] = orjson.loads(orjson.dumps(attrs.asdict(self)))
        return plain


def experiments() -> list[str]:
    """The names of the packaged ones."""
    folder = resources.files(__package__) / FOLDER
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def packaged_text(name: str) -> str:
    """The file of a packaged experiment. `PlanError`: there is none."""
    if name not in experiments():
        raise PlanError(
            f"there is no experiment {name!r}; there are {', '.join(experiments())}, or a .toml file"
        )
    return (resources.files(__package__) / FOLDER / f"{name}.toml").read_text()
