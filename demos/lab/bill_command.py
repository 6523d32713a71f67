"""`suspended lab bill`: reads traces of any kind and says what came of it, for people and for programs."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demos.lab.bill import CONSTANTS, Bill, as_json, bill_of, totals_of
from demos.lab.chain import STATES
from demos.lab.chains import ChainReader
from demos.lab.published import FORMS
from engine.server import printable
from protocol import readers

BILLED, NO_TRACE, NOTHING, INTERRUPTED = 0, 2, 3, 130
STDIN: Final = "-"
SHOWN_ROLLOUTS: Final = 20
_CHUNK_BYTES: Final = 1 << 16
_WIDTH: Final = 118
"""Where there is no terminal to ask."""

SUMMARY: Final = "the latency bill of recorded rollouts: what was sent again, done again, and waited for"
EPILOG: Final = """\
TRACE is what `suspended check` reads: this project's own traces (--trace, `suspended tap`), SSE logs, WebSocket frames,
HAR files, events of openai-python; - is standard input. A rollout is a chain of responses, or one suspended response.

  sent again   bytes of items, tools and instructions that the server had been sent, or had said itself
  done again   tokens of input that were not cached, though they had been read or sampled in the rollout before
  waiting      from a request or an append to the first output
  sampling     from the first output to the end of the last call, or of the response
  tools        from the end of the last call to the next request or append
  idle         between an answer without calls and the next request

A log has what it has: without requests there are no bytes, without times no seconds, without usage no tokens.

exit codes:
  0    at least one rollout was billed
  2    a file is no log that is known, or wrong usage
  3    neither a response nor a request in it
  130  interrupted; what was read so far is said
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The command's arguments; `SUMMARY` and `EPILOG` are its help."""
    add = parser.add_argument
    add("files", nargs="+", metavar="TRACE", help="logs to read; - reads standard input")
    add(
        "--format",
        choices=tuple(readers.FORMATS),
        help="what the files are (default: found out)",
    )
    add("--form", choices=("append", "inject", "create", "http"), help="the form of a log that is no trace")
    add("--json", action="store_true", help="an object a line for each rollout, then one with the totals")


def run(arguments: Namespace, out: TextIO | None = None, errors: TextIO | None = None) -> int:
    """The exit code. What is no log is complained of, the others are read all the same. `ValueError`: wrong usage."""
    out, errors = out or sys.stdout, errors or sys.stderr
    if arguments.files.count(STDIN) > 1:
        raise ValueError("bill: standard input (-) can be read once")
    readings: list[
        ChainReader
    ] = []  # one for each file: ids of different files have nothing to do with each other
    refused, interrupted = 0, False
    try:
        for name in arguments.files:
            readings.append(ChainReader())
            refused += not _read(readings[-1], name, arguments, errors)
    except KeyboardInterrupt:
        interrupted = True
    chains = [chain for reader in readings for chain in reader.chains]
    bills = [bill_of(chain) for chain in chains if chain.responses or chain.sent.requests]
    code = INTERRUPTED if interrupted else NO_TRACE if refused else BILLED if bills else NOTHING
    totals = totals_of(bills, dict.fromkeys(note for reader in readings for note in reader.notes))
    if arguments.json:
        for bill in bills:
            print(orjson.dumps(as_json(bill)).decode(), file=out)
        print(orjson.dumps({"totals": {**totals, "exit_code": code}}).decode(), file=out, flush=True)
    elif bills or code != NO_TRACE:
        _show(bills, totals, out)
    return code


def _read(reader: ChainReader, name: str, arguments: Namespace, errors: TextIO) -> bool:
    """Was it one?"""
    try:
        _read_entries(reader, name, _entries(name, arguments.format, arguments.form))
    except (readers.TraceError, OSError) as error:
        where = "" if isinstance(error, OSError) else f"{_called(name)}: "
        print(f"suspended: {printable(f'{where}{error}')}", file=errors)
        return False
    finally:
        reader.end()
    return True


def _read_entries(reader: ChainReader, name: str, entries: Iterable[Mapping[str, Any]]) -> None:
    number = 0
    for entry in entries:
        if "trace" in entry:
            number += 1
            reader.begin(entry, _called(name) if number == 1 else f"{_called(name)}#{number}")
        else:
            reader.record(entry)


def _entries(name: str, kind: str | None, form: str | None) -> Iterator[Mapping[str, Any]]:
    lines = readers.lines_of(_chunks(name))
    if kind is None:
        kind, lines = readers.detected(lines)
    return readers.entries(kind, lines, form)


def _chunks(name: str) -> Iterator[bytes]:
    if name == STDIN:
        yield from iter(lambda: sys.stdin.buffer.read(_CHUNK_BYTES), b"")
        return
    with Path(name).open("rb") as file:
        yield from iter(lambda: file.read(_CHUNK_BYTES), b"")


def _called(name: str) -> str:
    return "standard input" if name == STDIN else name


# --- for people ----------------------------------------------------------------------------------------------------


def _show(bills: Sequence[Bill], totals: Mapping[str, Any], out: TextIO) -> None:
    console = Console(file=out, width=None if out.isatty() else _WIDTH, highlight=False)
    if bills:
        console.print(_rollouts(bills))
        if len(bills) > SHOWN_ROLLOUTS:
            console.print(
                f"and {len(bills) - SHOWN_ROLLOUTS:,} more, which --json names; all are in the sums"
            )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, words in _rows(totals):
        table.add_row(Text(name), Text(words))
    console.print(table)
    notes = {**dict.fromkeys(totals["notes"]), **{note: None for bill in bills for note in bill.notes}}
    for note in notes:
        console.print(Text(f"note: {printable(note)}"))
    if _is_estimated(totals):
        console.print(Text(f"note: {CONSTANTS}"))


def _rollouts(bills: Sequence[Bill]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("rollout", "form"):
        table.add_column(name)
    for name in ("responses", "calls", "sent", "again", "input", "done again", *STATES):
        table.add_column(name, justify="right")
    longest = sorted(bills, key=lambda bill: (-(bill.wall_seconds or 0.0), -bill.responses))
    for bill in longest[:SHOWN_ROLLOUTS]:
        table.add_row(*map(Text, _cells(bill)))
    return table


def _cells(bill: Bill) -> Iterator[str]:
    sending, reading, seconds = bill.sending, bill.reading, bill.seconds
    yield printable(bill.response_id or "-")[:24]
    yield f"{bill.form}{'?' if bill.guessed else ''}"
    yield f"{bill.responses:,}"
    yield f"{bill.calls:,}"
    yield _size(sending.bytes_up if sending else None)
    yield _share(sending.resent_bytes, sending.bytes_up) if sending else "-"
    yield _number(reading.input_tokens if reading else None)
    yield _number(reading.redone_tokens if reading else None)
    for state in STATES:
        yield f"{seconds[state]:.2f} s" if seconds else "-"


def _rows(totals: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "", ""
    count = totals["rollouts"]
    yield (
        "in all",
        ", ".join(
            (
                _count(count, "rollout"),
                _count(totals["responses"], "response"),
                _count(totals["calls"], "call"),
            )
        ),
    )
    if totals["refused_requests"]:
        yield "refused", _count(totals["refused_requests"], "request")
    sent = totals["sent"]
    yield (
        "sent",
        "the log does not show it"
        if sent is None
        else (
            f"{_size(sent['bytes_up'])} in {_count(sent['requests'], 'request')}; {_size(sent['resent_bytes'])} "
            f"({_share(sent['resent_bytes'], sent['bytes_up'])}) again, {sent['resent_items']:,} of {sent['items']:,} items"
            f"{_of(sent, count)}"
        ),
    )
    tokens = totals["tokens"]
    yield (
        "read",
        "the log does not show it"
        if tokens is None
        else (
            f"{_number(tokens['input_tokens'])} tokens of input, {_number(tokens['resent_tokens'])} of them "
            f"{'' if sent and sent['of'] == count else 'probably '}sent again; "
            f"{_number(tokens['uncached_tokens'])} not cached, {_number(tokens['redone_tokens'])} of these done again; "
            f"{_number(tokens['output_tokens'])} sampled{_of(tokens, count)}"
        ),
    )
    seconds = totals["seconds"]
    yield (
        "time",
        "the log does not show it"
        if seconds is None
        else (", ".join(f"{state} {seconds[state]:.2f} s" for state in STATES) + _of(seconds, count)),
    )
    for form in FORMS:
        if totals["instead"][form]["of"]:
            yield f"as {form}", _instead(totals["instead"][form])


def _instead(instead: Mapping[str, Any]) -> str:
    size, saved = instead["bytes_up"], instead["seconds_saved"]
    words = [f"{_size(size)} sent"] if size is not None else []
    if saved is None:
        return ", ".join([*words, "seconds cannot be told"])
    low, high = sorted(map(abs, saved)) if saved[0] * saved[1] >= 0 else saved
    span = f"{low:.2f} to {high:.2f} s" if f"{low:.2f}" != f"{high:.2f}" else f"{low:.2f} s"
    few = (
        f" (of {_count(instead['seconds_saved_of'], 'rollout')})"
        if instead["seconds_saved_of"] < instead["of"]
        else ""
    )
    return ", ".join([*words, f"{span} {'more' if saved[1] < 0 else 'less'}{few}"])


def _is_estimated(totals: Mapping[str, Any]) -> bool:
    return any(each["seconds_saved"] for each in totals["instead"].values())


def _of(known: Mapping[str, Any], count: int) -> str:
    return "" if known["of"] == count else f"  (of {known['of']:,} rollouts; the others do not show it)"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count:,} B" if count < 10_000 else f"{count / 1000:,.1f} kB"


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
