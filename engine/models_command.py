"""`suspended models`: the table of models, as a server would read it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from engine.models import ModelEntry, ModelTable
from engine.samplers.chat import NOTICE, is_chat

_HEAD: Final = ("name", "sampler", "format", "tokenizer", "context", "tokens/s", "price/M", "capabilities")


def models(file: Path | None, out: TextIO) -> int:
    """Print the table, and below it which models keep nothing warm for sure; 0. `ValueError`, `OSError`: it cannot be read."""
    table = ModelTable.built_in() if file is None else ModelTable.from_toml(file)
    print("\n".join(_lines([_HEAD, *map(_row, table.entries)])), file=out)
    for entry in table.entries:
        if is_chat(entry.sampler or ""):
            print(f"{entry.name}: {NOTICE}", file=out)
    return 0


def _row(entry: ModelEntry) -> Sequence[str]:
    name = f"{entry.name} (default)" if entry.default else entry.name
    speed = _joined(entry.prefill_tokens_per_second, entry.tokens_per_second)
    price = _joined(entry.input_price, entry.cached_input_price, entry.output_price)
    own = (entry.sampler or "the server's", entry.format or "-", entry.tokenizer or "-")
    return (name, *own, f"{entry.context_tokens:,}", speed, price, " ".join(sorted(entry.capabilities)))


def _joined(*numbers: float | None) -> str:
    """In the order read, cached, written; a dash where nothing was said."""
    if all(number is None for number in numbers):
        return "-"
    return " / ".join("-" if number is None else f"{number:g}" for number in numbers)


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
