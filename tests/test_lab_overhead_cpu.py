"""The server's overhead: what is above a floor that was run, by arithmetic on records and by running the floors."""

import attrs
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab.content import ClientContent, ScriptedWork
from demos.lab.overhead_cpu import (
    has_floors,
    last_against_first,
    overheads,
    raw_share,
    share,
    turn_cpu_ms,
)
from demos.lab.overhead_cpu_sections import context_section, overhead_method, overhead_sections
from demos.lab.records import Rollout, as_json, cell_key, from_json
from demos.lab.server import KeptTraces
from demos.lab.virtual import run_virtual
from engine import vocabulary
from engine.samplers.base import CallStart, End, Text
from protocol.items import Message
from tests.lab_rollouts import SERVER, TURN, rollout
from tests.test_lab_driver import WORK, case_of

CONFIG = {"arms": ["naive", "optimised", "append", "floor", "floor-http"], "headline": "append"}
CPU_MS = {"naive": 66.0, "optimised": 26.0, "append": 12.0, "floor": 10.0, "floor-http": 6.0}
TURNS = 4


def measured(arm: str, cpu_ms: float, *, block: int = 0, **changes: object) -> Rollout:
    turns = (TURN,) if arm.startswith("floor") else (TURN,) * TURNS
    server = attrs.evolve(SERVER, cpu_s=cpu_ms / 1e3)
    return rollout(**{"arm": arm, "block": block, "turns": turns, "server": server, **changes})


def records(blocks: int = 3) -> list[Rollout]:
    """Blocks that differ by what a machine adds to all of them."""
    return [measured(arm, ms + block, block=block) for block in range(blocks) for arm, ms in CPU_MS.items()]


def test_overhead_is_what_is_above_the_floor_of_ones_own_transport() -> None:
    """Append is held against WebSocket's floor, HTTP against its own; by hand (12 - 10) / 4 and (26 - 6) / 4."""
    found = {one.arm: one for one in overheads(records(), CONFIG["arms"])}
    assert {arm: one.overhead for arm, one in found.items()} == pytest.approx(
        {"naive": 15.0, "optimised": 5.0, "append": 0.5}
    )
    assert found["append"].raw == pytest.approx((12 + 1) / 4)
    assert found["append"].floor == pytest.approx((10 + 1) / 4)
    assert found["append"].interval is not None
    assert found["append"].interval.low == pytest.approx(found["append"].interval.high)


def test_shares_are_of_overheads_and_of_raw_time() -> None:
    """A tenth of one, and half of the other."""
    assert share(records(), "optimised", "append").ratio == pytest.approx(0.1)
    assert raw_share(records(), "optimised", "append").ratio == pytest.approx(13 / 27)


def test_a_rollout_without_its_floor_counts_nowhere() -> None:
    """What was not run is not estimated."""
    some = [one for one in records() if (one.arm, one.block) != ("floor", 1)]
    found = {one.arm: one for one in overheads(some, CONFIG["arms"])}
    assert (found["append"].pairs, found["optimised"].pairs) == (2, 3)
    assert [one.overhead for one in overheads([measured("append", 12.0)], ["append"])] == [None]
    assert share([measured("append", 12.0)], "optimised", "append").ratio is None


def test_what_failed_or_broke_a_rule_counts_nowhere() -> None:
    """Nor does a server that did not say what it took."""
    bad = [
        measured("append", 900.0, block=7, valid=False, reasons=("late",)),
        measured("append", 900.0, block=8, total_s=None, error="it failed"),
        measured("append", 900.0, block=9, server=None),
    ]
    floors = [measured("floor", 1.0, block=block) for block in (7, 8, 9)]
    assert overheads([*records(), *bad, *floors], ["append"]) == overheads(records(), ["append"])


def with_turns(cpu_ms: list[float], block: int = 0) -> Rollout:
    cost = attrs.evolve(SERVER, turn_cpu_s=tuple(ms / 1e3 for ms in cpu_ms))
    return rollout(arm="append", block=block, turns=(TURN,) * 13, server=cost)


def test_ends_of_a_rollout_are_compared_without_what_comes_once() -> None:
    """The first turn, with its history, and the last, with the end of the response, are left out."""
    one = with_turns([90.0, 1, 1, 1, 1, 1, 5, 2, 2, 2, 2, 2, 70.0])
    assert last_against_first([one], "append").ratio == pytest.approx(2.0)
    assert last_against_first([one], "create").ratio is None
    assert last_against_first([rollout(arm="append")], "append").ratio is None


def test_what_was_said_before_the_turns_is_no_turn() -> None:
    """A warm-up's time is in front of the first turn's."""
    assert turn_cpu_ms(with_turns([50.0, *[1.0] * 13])) == pytest.approx([1.0] * 13)
    assert turn_cpu_ms(with_turns([1.0])) == []


def test_times_of_turns_are_kept_in_the_file() -> None:
    """And a file of before has none."""
    one = with_turns([1.0] * 13)
    line = as_json(one)
    assert from_json(line) == one
    del line["server"]["turn_cpu_s"]
    assert from_json(line).server.turn_cpu_s == ()


def test_the_report_says_it_with_its_method() -> None:
    """Where a floor was run; else it says nothing."""
    told = [*overhead_sections(records(), CONFIG, "1,000 tokens/s", "results.jsonl")]
    assert [one.title for one in told] == ["The server's overhead of a turn, 1,000 tokens/s"]
    assert "0.50 ms of CPU time above its floor: 0.1 (" in told[0].sentence
    assert told[0].picture is not None
    assert "one response" in overhead_method(records())[0]
    plain = [one for one in records() if not one.arm.startswith("floor")]
    assert not has_floors(plain)
    assert [*overhead_sections(plain, CONFIG, "x", "y")] == []
    assert overhead_method(plain) == ()


def of_history(tokens: int, optimised_ms: float) -> list[Rollout]:
    """Rollouts of a cell, in which a turn of append takes 0.5 ms above its floor."""
    return [
        attrs.evolve(one, cell={**one.cell, "history_tokens": tokens})
        for block in range(3)
        for one in (
            measured("append", 12.0, block=block),
            measured("floor", 10.0, block=block),
            measured("optimised", 10.0 + 4 * optimised_ms, block=block),
            measured("floor-http", 10.0, block=block),
        )
    ]


def test_the_overhead_is_told_by_the_length_of_the_history() -> None:
    """In the order of the lengths, of the cells that differ in nothing else; of one length nothing is told."""
    cells = {
        cell_key({"history_tokens": 100_000, "tokens_per_second": 4_000}): of_history(100_000, 10.0),
        cell_key({"history_tokens": 10_000, "tokens_per_second": 4_000}): of_history(10_000, 5.0),
        cell_key({"history_tokens": 10_000, "tokens_per_second": 65}): of_history(10_000, 50.0),
    }
    (section,) = context_section(cells, CONFIG, "results.jsonl")
    assert (
        "At 10,000 / 100,000 tokens of history a turn of append costs the server 0.50 / 0.50 ms"
        in section.sentence
    )
    assert "0.1 / 0.05 of what one of optimised does" in section.sentence
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == [10_000, 100_000]
    assert section.picture is not None
    assert "<svg" in section.picture.svg
    assert [*context_section(dict([*cells.items()][1:]), CONFIG, "results.jsonl")] == []


# --- the floors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arm", "form"), [("floor", "append"), ("floor-http", "optimised")])
def test_a_floor_does_the_same_work_without_turns(arm: str, form: str) -> None:
    """It samples as many tokens and reads them once, in one response over one connection."""
    floor, turns = (run_virtual(case_of(name), 60.0).rollout for name in (arm, form))
    assert (floor.error, floor.reasons, floor.findings) == (None, (), 0)
    assert floor.tokens.sampled == turns.tokens.sampled
    assert floor.tokens.reused == 0
    markers = turns.tokens.computed - floor.tokens.computed  # of a tool's output against a user's message
    assert 0 <= markers <= 5 * len(WORK.steps)
    assert floor.server is not None
    assert (floor.server.responses, floor.connections, len(floor.turns)) == (1, 1, 1)


def test_a_floor_says_what_the_steps_say() -> None:
    """The same texts and calls in their order, and one end; the texts of the tools in one input."""
    whole, steps = (
        [part for segment in ScriptedWork(WORK, 0, at_once=at_once)._segments for part in segment]
        for at_once in (True, False)
    )
    assert [part.text for part in whole if isinstance(part, Text)] == [
        part.text for part in steps if isinstance(part, Text)
    ]
    assert [part.index for part in whole if isinstance(part, CallStart)] == [0, 1]
    assert [part for part in whole if isinstance(part, End)] == [End()]
    content = ClientContent.of(WORK, 0)
    said = content.at_once()
    assert said[: -len(content.outputs)] == (*content.history, *content.prompt)
    assert [item.content for item in said[-2:] if isinstance(item, Message)] == list(content.outputs)
    assert [len(vocabulary.encode(text)) for text in content.outputs] == [30, 10]


async def test_cpu_time_is_read_each_time_a_client_says_something() -> None:
    """So many spans as frames and requests, the last one until the end."""
    traces = KeptTraces()
    socket, http = traces.recorder("append", 1.0), traces.http_recorder()
    socket.frame_in(b"{}")
    socket.frame_out(b"{}")
    socket.frame_in(b"{}")
    http.request("POST", "/v1/responses", {}, b"{}")
    spans = traces.cpu_of_turns(1e9)
    assert len(spans) == 3
    assert all(span >= 0 for span in spans)
    assert spans[-1] > 1e8
