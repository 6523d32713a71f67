"""What a result file holds, as values: one header, then a line for each rollout that was run, and notes.

A number that is not there is None, never 0: a rollout that failed has no total, and nothing is computed from it.
Reading is strict about what is missing and silent about what is new, so that a newer lab may add members.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import orjson

SCHEMA_VERSION: Final = 1

Clock = Literal["wall", "virtual"]
CellValue = str | int | float | bool
CellKey = tuple[tuple[str, CellValue], ...]
"""A cell's axes sorted by name; 30 and 30.0 are one value."""

NOT_SERVER_TIME: Final = frozenset({"suspended"})
"""Stages in which the server waits for the client's tools."""
RESIDUAL_STAGE: Final = "other"
"""The ledger's name for what no stage claims."""


def cell_key(cell: Mapping[str, CellValue]) -> CellKey:
    """What tells cells apart, whatever the order of their axes."""
    return tuple(sorted(cell.items()))


def cell_name(cell: Mapping[str, CellValue] | CellKey) -> str:
    """A cell in words: `calls=30 rtt_ms=30`."""
    return " ".join(f"{axis}={value}" for axis, value in sorted(dict(cell).items()))


@attrs.frozen
class PairKey:
    """What the rollouts of a pair have in common: all but the arm."""

    cell: CellKey
    work: str
    seed: int
    block: int


@attrs.frozen
class RolloutKey:
    """What a rollout is told apart by: no two records of a file have the same."""

    pair: PairKey
    arm: str

    def __str__(self) -> str:
        pair = self.pair
        return f"{self.arm} at {cell_name(pair.cell)}, work {pair.work}, seed {pair.seed}, block {pair.block}"


@attrs.frozen(kw_only=True)
class Turn:
    """One model call, in seconds from the intended start of its rollout."""

    sent_s: float
    first_s: float | None
    """When its first token came."""
    done_s: float | None
    bytes_up: int
    bytes_down: int


@attrs.frozen(kw_only=True)
class Tokens:
    """What the model did, in tokens."""

    sampled: int
    reused: int
    """Of the input, what a cache held."""
    computed: int


@attrs.frozen(kw_only=True)
class ServerCost:
    """What the server says of a rollout: all its responses summed up."""

    cpu_s: float | None
    wall_ns: int
    stages: Mapping[str, int]
    responses: int
    turn_cpu_s: tuple[float, ...] = ()
    """From one thing that the client says to the next, or to the end; empty in virtual time."""

    @property
    def residual_share(self) -> float | None:
        """Of the server's time, what no stage claims; None if there was no time to claim."""
        waiting_ns = sum(self.stages.get(stage, 0) for stage in NOT_SERVER_TIME)
        server_ns = self.wall_ns - waiting_ns
        claimed_ns = sum(ns for stage, ns in self.stages.items() if stage != RESIDUAL_STAGE) - waiting_ns
        return (server_ns - claimed_ns) / server_ns if server_ns > 0 else None


@attrs.frozen(kw_only=True)
class Rollout:
    """One rollout in one arm. All times are in seconds from the intended start."""

    cell: Mapping[str, CellValue]
    arm: str
    work: str
    seed: int
    block: int
    order: int
    """Its place within the block."""
    clock: Clock
    intended_s: float
    """The intended start, from the start of the run."""
    late_s: float
    """How much later than intended it began: the load generator's fault."""
    created_s: float | None
    ttft_s: float | None
    total_s: float | None
    """None: it did not end."""
    turns: tuple[Turn, ...]
    bytes_up: int
    bytes_down: int
    connections: int
    tokens: Tokens
    server: ServerCost | None
    """None: the server is not ours, or did not say."""
    findings: int
    """Of the trace checker."""
    error: str | None = None
    """Why it failed."""
    valid: bool = True
    reasons: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Did it not end, or end badly?"""
        return self.error is not None or self.total_s is None

    @property
    def key(self) -> RolloutKey:
        """See RolloutKey."""
        return RolloutKey(PairKey(cell_key(self.cell), self.work, self.seed, self.block), self.arm)


@attrs.frozen(kw_only=True)
class Note:
    """Anything else that a run has to say."""

    topic: str
    detail: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Host:
    """The machine, without its name."""

    cores: int
    cpu: str
    python: str
    platform: str


@attrs.frozen(kw_only=True)
class Environment:
    """What a figure depends on besides the plan."""

    commit: str
    """`unknown` without a checkout."""
    dirty: bool
    """Did the checkout hold changes that are in no commit?"""
    versions: Mapping[str, str]
    host: Host
    code: Mapping[str, tuple[str, int]] = attrs.field(factory=dict)
    """Of each source file digest and lines (`demos.lab.fingerprint`); empty in files of a lab that did not keep it."""


@attrs.frozen(kw_only=True)
class Header:
    """The plan of a run and where it ran."""

    experiment: str
    config: Mapping[str, Any]
    seed: int
    environment: Environment
    began: str
    """ISO 8601."""
    submission_valid: bool | None = None
    """Was it begun as the locked scenario (`demos.lab.scenario`)? None: by a lab that did not ask."""
    conflicts: tuple[str, ...] = ()
    """Why not."""

    @property
    def digest(self) -> str:
        """A short name of the plan: the same experiment, config and seed have the same."""
        plan = orjson.dumps([self.experiment, self.config, self.seed], option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(plan).hexdigest()[:12]


Record = Rollout | Note


def as_json(record: Header | Record) -> dict[str, Any]:
    """A line of the file, as plain data."""
    values = attrs.asdict(record)
    if isinstance(record, Header):
        values |= values.pop("environment")
    return {"v": SCHEMA_VERSION, "kind": type(record).__name__.lower()} | values


def from_json(line: Mapping[str, Any]) -> Header | Record:
    """The record of a line. KeyError, TypeError and ValueError say what is wrong with it; that is the file's fault."""
    if line["v"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {line['v']!r}, and this lab reads {SCHEMA_VERSION}")
    match line["kind"]:
        case "header":
            parts = {"environment": _environment(line), "conflicts": tuple(line.get("conflicts", ()))}
            return Header(**_members(Header, {**line, **parts}))
        case "rollout":
            return _rollout(line)
        case "note":
            return Note(**_members(Note, line))
        case kind:
            raise ValueError(f"kind {kind!r}, and this lab knows header, rollout and note")


def _environment(line: Mapping[str, Any]) -> Environment:
    host = Host(**_members(Host, line["host"]))
    members = _members(Environment, line) | {"host": host}
    members["code"] = {path: (digest, lines) for path, (digest, lines) in line.get("code", {}).items()}
    return Environment(**members)


def _rollout(line: Mapping[str, Any]) -> Rollout:
    members = _members(Rollout, line)
    members["turns"] = tuple(Turn(**_members(Turn, turn)) for turn in line["turns"])
    members["tokens"] = Tokens(**_members(Tokens, line["tokens"]))
    if line["server"] is not None:
        cost = _members(ServerCost, line["server"])
        members["server"] = ServerCost(**cost | {"turn_cpu_s": tuple(cost.get("turn_cpu_s", ()))})
    members["reasons"] = tuple(line.get("reasons", ()))
    return Rollout(**members)


def _members(of: type, line: Mapping[str, Any]) -> dict[str, Any]:
    """The members that the class has a field for; KeyError names one without default that is not there."""
    fields: Iterable[attrs.Attribute[Any]] = attrs.fields(of)
    return {
        field.name: line[field.name]
        for field in fields
        if field.name in line or field.default is attrs.NOTHING
    }


def differences(path: str, theirs: object, ours: object) -> Sequence[str]:
    """Where two JSON values differ, each as `path: file has x, asked for y`."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        found: list[str] = []
        for key in sorted(theirs.keys() | ours.keys()):
            found += differences(f"{path}.{key}", theirs.get(key, ABSENT), ours.get(key, ABSENT))
        return found
    return () if theirs == ours else (f"{path}: the file has {_shown(theirs)}, asked for {_shown(ours)}",)


ABSENT: Final = object()


def _shown(value: object) -> str:
    return "nothing" if value is ABSENT else orjson.dumps(value, default=repr).decode()
