"""How many events a second the checker reads, and that its cost does not grow with the trace.

Clean traces of all dialects, told by the tests' own builder, are repeated as one long trace each, with new connections
and ids: short answers (a fifth of the events are deltas) and long ones (most events are deltas).
Medians of five runs; the CPU time of this process alone.

*Parsed*: records that orjson has read. *Lines*: `orjson.loads` of each line included.
Target: at least 150,000 events a second, so at most `BUDGET_US` microseconds an event.
*Growth*: the last quarter of a trace costs at most `GROWTH_BOUND` times an event of the first quarter.
Profile `this-engine`: all rules. Not measured: reading files, printing.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from protocol.invariants import Checker
from tests.bench.harness import Spread, Verdicts, is_quick
from tests.invariant_traces import ALL_HOOKS, Talk, output

EVENTS_A_SECOND = 150_000
BUDGET_US = 1e6 / EVENTS_A_SECOND
GROWTH_BOUND = 1.25
RUNS = 5
WORDS = [" word"] * 200


def short_http() -> Talk:
    """A message and two calls over SSE."""
    return Talk("http").on("c@").ask().begin("r@").message("Hel", "lo").call("call_1@", "call_2@").end()


def short_create() -> Talk:
    """A chain of three turns."""
    story = Talk("create").on("c@").ask().begin("r@a").reasoning("Hm", ".").call("call_@").end()
    story.ask(previous_response_id="r@a", input=[output("call_@")]).begin("r@b", "r@a").message(
        "Hel", "lo"
    ).end()
    return story.turn("r@c", "r@b")


def short_append() -> Talk:
    """Two pauses, with the engine's hooks."""
    story = Talk("append", *ALL_HOOKS).on("c@").ask().hook("pre_inference", response_id="r@").begin("r@")
    for call_id in ("call_1@", "call_2@"):
        story.call(call_id).suspend(call_id).append(call_id).accepted(call_id).resume(call_id)
    return story.message("Hel", "lo").hook("post_inference", response_id="r@").end()


def short_inject() -> Talk:
    """Two parallel calls, one inject each."""
    story = Talk("inject").on("c@").ask().begin("r@").call("call_1@", "call_2@")
    return story.inject("call_2@").taken().inject("call_1@").taken().message("Hel", "lo").end()


def long_answer() -> Talk:
    """Two hundred deltas in each of three messages."""
    return Talk("create").on("c@").ask().begin("r@").message(*WORDS).message(*WORDS).message(*WORDS).end()


STORIES: dict[str, Callable[[], Talk]] = {
    "http": short_http,
    "create": short_create,
    "append": short_append,
    "inject": short_inject,
    "long": long_answer,
}


def lines(talk: Talk, events: int) -> list[bytes]:
    """A trace of about so many records, as JSON lines."""
    story = b"\n".join(orjson.dumps(record) for record in talk.records)
    found: list[bytes] = []
    for number in range(max(4, events // len(talk.records))):
        found += story.replace(b"@", b"%d" % number).split(b"\n")
    return found


def microseconds(talk: Talk, records: Iterable[Any], read: Callable[[Any], Any]) -> float:
    """The CPU time of a record; the trace must be clean."""
    checker = Checker(talk.header, profile="this-engine")
    feed, found, count = checker.feed, 0, 0
    gc.collect()
    started = time.process_time()
    for record in records:
        found += len(feed(read(record)))
        count += 1
    spent = time.process_time() - started
    assert found + len(checker.finish()) == 0, "a clean trace"
    return spent / count * 1e6


def growth(talk: Talk, text: list[bytes]) -> float:
    """What an event of the last quarter costs, as a multiple of one of the first."""
    checker = Checker(talk.header, profile="this-engine")
    records = [orjson.loads(line) for line in text]
    quarter, times = len(records) // 4, []
    for part in (records[:quarter], records[quarter:-quarter], records[-quarter:]):
        gc.collect()
        started = time.process_time()
        for record in part:
            checker.feed(record)
        times.append((time.process_time() - started) / len(part))
    return times[-1] / times[0]


def main() -> int:
    """Print both rates of each story, and the verdicts."""
    quick = is_quick(__doc__)
    events = 2_000 if quick else 60_000
    verdicts = Verdicts(quick=quick)
    parsed: dict[str, float] = {}
    loaded: dict[str, float] = {}
    for name, make in STORIES.items():
        talk = make()
        text = lines(talk, events)
        records = [orjson.loads(line) for line in text]
        parsed[name] = statistics.median(
            microseconds(talk, records, lambda record: record) for _ in range(RUNS)
        )
        loaded[name] = statistics.median(microseconds(talk, text, orjson.loads) for _ in range(RUNS))
        print(
            f"{name:8} {1e6 / parsed[name]:>9,.0f} events/s parsed, {1e6 / loaded[name]:>9,.0f} events/s with orjson.loads"
            f"  (ratio {loaded[name] / parsed[name]:.2f}, {len(text):,} records)"
        )
    for what, figures in (("parsed", parsed), ("lines", loaded)):
        verdicts.at_most(
            f"an event, {what}, mean of all dialects", statistics.mean(figures.values()), BUDGET_US, " us"
        )
    talk = short_create()
    text = lines(talk, 4 * events)
    grown = Spread(tuple(sorted(growth(talk, text) for _ in range(1 if quick else 3))))
    verdicts.at_most("an event of the last quarter, of one of the first", grown.median, GROWTH_BOUND)
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
