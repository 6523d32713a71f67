"""Every scenario of the table, in each form, with its exact outcome."""

import logging
from collections.abc import Mapping

import attrs
import pytest

from engine.testing import simulate
from tests.scenarios import CASES, SCENARIOS, Outcome, findings, run_scenario

HOOKS = ("suspend", "accepted", "resume", "hosted")
ONCE = ("pre_inference", "resolve", "classify_output", "account", "persist", "post_inference")


@attrs.frozen
class Ended:
    """How one rollout ended, and how often its hooks ran."""

    status: str
    ending: str
    segments: int = 1
    output_tokens: int = 1
    suspend: int = 0
    accepted: int = 0
    resume: int = 0
    hosted: int = 0


@attrs.frozen(kw_only=True)
class Expected:
    """What the client sees, items named by their kind; then the rollouts in order of their end, and why not completed."""

    append: str | None = None
    inject: str | None = None
    ended: tuple[Ended, ...] | Mapping[str, tuple[Ended, ...]]
    why: str | None = None
    """`reason` of an incomplete response, `error.code` of a failed one."""


ANSWERED = Ended("completed", "completed", 2, 3, suspend=1, accepted=1, resume=1)
TWICE = Ended("completed", "completed", 3, 5, suspend=2, accepted=2, resume=2)
SAID = Ended("completed", "completed")
LEFT = Ended("completed", "abandoned", 1, 2, suspend=1)
LONG = attrs.evolve(ANSWERED, output_tokens=5)

EXPECTED = {
    "plain text": Expected(
        append="created in_progress message completed",
        inject="created in_progress message completed",
        ended=(SAID,),
    ),
    "one call": Expected(
        append="created in_progress function_call done message completed",
        inject="created in_progress function_call inject.created message completed",
        ended=(ANSWERED,),
    ),
    "text, then a call": Expected(
        append="created in_progress message function_call done message completed",
        inject="created in_progress message function_call inject.created message completed",
        ended=(LONG,),
    ),
    "calls answered together": Expected(
        append="created in_progress function_call function_call done message completed",
        inject="created in_progress function_call function_call inject.created message completed",
        ended=(LONG,),
    ),
    "calls answered in reverse": Expected(
        append="created in_progress function_call function_call done message completed",
        inject="created in_progress function_call function_call inject.created message completed",
        ended=(LONG,),
    ),
    "calls answered in two frames": Expected(
        append="created in_progress function_call function_call done message completed",
        inject="created in_progress function_call function_call inject.created inject.created message completed",
        ended=(attrs.evolve(LONG, accepted=2),),
    ),
    "calls answered early": Expected(
        append="created in_progress function_call function_call message completed",
        inject="created in_progress function_call inject.created function_call inject.created message completed",
        ended=(attrs.evolve(LONG, accepted=2, suspend=0, resume=0),),
    ),
    "interleaved calls": Expected(
        append="created in_progress function_call function_call done message completed",
        inject="created in_progress function_call function_call inject.created message completed",
        ended=(attrs.evolve(LONG, output_tokens=7),),
    ),
    "reasoning": Expected(
        append="created in_progress reasoning message completed",
        inject="created in_progress reasoning message completed",
        ended=(attrs.evolve(SAID, output_tokens=3),),
    ),
    "custom tool": Expected(
        append="created in_progress custom_tool_call done message completed",
        inject="created in_progress custom_tool_call inject.created message completed",
        ended=(ANSWERED,),
    ),
    "search for tools": Expected(
        append="created in_progress tool_search_call done custom_tool_call done message completed",
        inject="created in_progress tool_search_call inject.created custom_tool_call inject.created message completed",
        ended=(TWICE,),
    ),
    "namespaced tool": Expected(
        append="created in_progress function_call done message completed",
        inject="created in_progress function_call inject.created message completed",
        ended=(ANSWERED,),
    ),
    "hosted tool": Expected(
        append="created in_progress mcp_call message completed",
        inject="created in_progress mcp_call message completed",
        ended=(Ended("completed", "completed", 2, 3, hosted=1),),
    ),
    "hosted and client tool": Expected(
        append="created in_progress function_call mcp_call done message completed",
        inject="created in_progress function_call mcp_call inject.created message completed",
        ended=(attrs.evolve(LONG, hosted=1),),
    ),
    "too many hosted calls": Expected(
        append="created in_progress mcp_call incomplete",
        inject="created in_progress mcp_call incomplete",
        ended=(Ended("incomplete", "max_tool_calls", 2, 4, hosted=1),),
        why="max_tool_calls",
    ),
    "budget spent in text": Expected(
        append="created in_progress message incomplete",
        inject="created in_progress message incomplete",
        ended=(Ended("incomplete", "max_output_tokens", 1, 3),),
        why="max_output_tokens",
    ),
    "budget spent in arguments": Expected(
        append="created in_progress function_call incomplete",
        inject="created in_progress function_call incomplete",
        ended=(Ended("incomplete", "max_output_tokens", 1, 4),),
        why="max_output_tokens",
    ),
    "the model's own limit": Expected(
        append="created in_progress message incomplete",
        inject="created in_progress message incomplete",
        ended=(Ended("incomplete", "max_output_tokens"),),
        why="max_output_tokens",
    ),
    "sampler fails at once": Expected(
        append="created in_progress failed",
        inject="created in_progress failed",
        ended=(Ended("failed", "failed", 1, 0),),
        why="server_error",
    ),
    "sampler fails in an item": Expected(
        append="created in_progress failed",
        inject="created in_progress failed",
        ended=(Ended("failed", "failed"),),
        why="server_error",
    ),
    "sampler ends silently": Expected(
        append="created in_progress failed",
        inject="created in_progress failed",
        ended=(Ended("failed", "failed"),),
        why="server_error",
    ),
    "nobody answers": Expected(
        append="created in_progress function_call done failed error",
        inject="created in_progress function_call completed inject.failed",
        ended={
            "append": (Ended("failed", "expired", 1, 2, suspend=1),),
            "inject": (Ended("completed", "expired", 1, 2, suspend=1),),
        },
        why="server_error",
    ),
    "abandoned by a create": Expected(
        append="created in_progress function_call done created in_progress message completed",
        inject="created in_progress function_call created in_progress message completed",
        ended=(LEFT, SAID),
    ),
    "create before the pause": Expected(
        append="created in_progress function_call created in_progress message completed",
        inject="created in_progress function_call created in_progress message completed",
        ended=(attrs.evolve(LEFT, suspend=0), SAID),
    ),
    "create follows a create": Expected(
        append="created in_progress function_call created in_progress message completed",
        inject="created in_progress function_call created in_progress message completed",
        ended=(attrs.evolve(LEFT, suspend=0), SAID),
    ),
    "continued": Expected(
        append="created in_progress message completed created in_progress message completed",
        inject="created in_progress message completed created in_progress message completed",
        ended=(SAID, SAID),
    ),
    "continued where it waited": Expected(
        append="created in_progress function_call done created in_progress message completed",
        inject="created in_progress function_call created in_progress message completed",
        ended=(LEFT, SAID),
    ),
    "message beside an output": Expected(
        append="created in_progress function_call done message completed", ended=(ANSWERED,)
    ),
    "items sent back": Expected(
        append="created in_progress reasoning message function_call done message completed", ended=(LONG,)
    ),
    "drained while suspended": Expected(
        append="created in_progress function_call done failed",
        inject="created in_progress function_call completed",
        ended={
            "append": (Ended("failed", "drained", 1, 2, suspend=1),),
            "inject": (Ended("completed", "drained", 1, 2, suspend=1),),
        },
        why="server_error",
    ),
    "drained while sampling to a call": Expected(
        append="created in_progress message function_call failed",
        inject="created in_progress message function_call completed",
        ended={
            "append": (Ended("failed", "drained", 1, 3),),
            "inject": (Ended("completed", "drained", 1, 3),),
        },
        why="server_error",
    ),
    "drained while sampling to the end": Expected(
        append="created in_progress message completed",
        inject="created in_progress message completed",
        ended=(attrs.evolve(SAID, output_tokens=2),),
    ),
    "drained for too long": Expected(
        append="created in_progress failed",
        inject="created in_progress failed",
        ended=(Ended("failed", "drained"),),
        why="server_error",
    ),
    "two lanes": Expected(
        append="created in_progress function_call done created in_progress function_call done"
        " function_call done function_call done message completed message completed",
        inject="created in_progress function_call created in_progress function_call"
        " inject.created function_call inject.created function_call"
        " inject.created message completed inject.created message completed",
        ended=(TWICE, TWICE),
    ),
    "client leaves a suspended rollout": Expected(
        append="created in_progress function_call done",
        inject="created in_progress function_call",
        ended=(Ended("completed", "disconnected", 1, 2, suspend=1),),
    ),
    "client leaves a sampling rollout": Expected(
        append="created in_progress",
        inject="created in_progress",
        ended=(Ended("cancelled", "disconnected", 1, 3),),
    ),
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The scenarios fail samplers on purpose."""
    caplog.set_level(logging.CRITICAL)


def outcome_of(name: str, form: str, *, seed: int = 1) -> Outcome:
    outcome = Outcome()
    simulate(run_scenario, SCENARIOS[name], form, outcome, seed=seed)
    assert findings(outcome) == []
    return outcome


def shape(outcome: Outcome) -> str:
    """The frames by type; an item is named by its kind when it is done, its inner events are the checker's matter."""
    words = []
    for frame in outcome.frames:
        name = frame["type"].removeprefix("response.")
        if name == "output_item.done":
            words.append(frame["item"]["type"])
        elif "_" not in name.split(".")[0] or name == "in_progress":
            words.append(name)
    return " ".join(words)


def endings(outcome: Outcome) -> tuple[Ended, ...]:
    return tuple(
        Ended(
            report.status,
            report.ending,
            report.usage.segments,
            report.usage.output_tokens,
            *(report.hooks.get(name, 0) for name in HOOKS),
        )
        for report in outcome.reports
    )


def reasons(outcome: Outcome) -> list[str]:
    found = []
    for frame in outcome.frames:
        response = frame.get("response") or {}
        if response.get("incomplete_details") is not None:
            found.append(response["incomplete_details"]["reason"])
        if response.get("error") is not None:
            found.append(response["error"]["code"])
    return found


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_scenario_has_its_outcome(name: str, form: str) -> None:
    """The client sees the expected events, and each stage ran as often as it should."""
    expected = EXPECTED[name]
    ended = expected.ended if isinstance(expected.ended, tuple) else expected.ended[form]

    outcome = outcome_of(name, form)

    assert shape(outcome) == getattr(expected, form)
    assert endings(outcome) == ended
    failed = any(end.status in {"incomplete", "failed"} for end in ended)
    assert reasons(outcome) == ([expected.why] if failed else [])
    for report in outcome.reports:
        assert {hook: report.hooks[hook] for hook in ONCE} == dict.fromkeys(ONCE, 1)
        slots = report.hooks["slot_acquire"], report.hooks["slot_release"]
        assert slots == (report.usage.segments, report.usage.segments)


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if len(scenario.forms) > 1])
def test_both_forms_cost_the_same(name: str) -> None:
    """One script and the same outputs give the same usage in both forms, segment by segment."""
    usages = [[report.usage for report in outcome_of(name, form).reports] for form in SCENARIOS[name].forms]

    assert usages[0] == usages[1]


@pytest.mark.parametrize("form", ["append", "inject"])
def test_a_create_that_crosses_the_pause_ends_the_same_way_in_both_orders(form: str) -> None:
    """Before or after the pause began, the create abandons the rollout; only `response.done` tells the orders apart."""
    before, after = outcome_of("create before the pause", form), outcome_of("abandoned by a create", form)

    assert shape(before) == shape(after).replace(" done", "")
    assert [end.ending for end in endings(before)] == [end.ending for end in endings(after)]
    assert [report.usage for report in before.reports] == [report.usage for report in after.reports]


@pytest.mark.parametrize(("name", "form"), [case for case in CASES if case[0].startswith("calls answered")])
def test_the_order_of_the_answers_changes_nothing(name: str, form: str) -> None:
    """Outputs that arrive in another order, or in pieces, give the same context and the same answer."""
    alike, outcome = outcome_of("calls answered together", form), outcome_of(name, form)

    assert [report.usage for report in outcome.reports] == [report.usage for report in alike.reports]
    outputs = [o.frames[-1]["response"]["output"] for o in (alike, outcome)]
    texts = [[item.get("content") or item["arguments"] for item in output] for output in outputs]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("form", ["append", "inject"])
def test_no_interleaving_of_the_tasks_changes_an_outcome(form: str) -> None:
    """Twenty orders of the scheduler give the client the same events."""
    shapes = {shape(outcome_of("two lanes", form, seed=seed)) for seed in range(20)}

    assert shapes == {EXPECTED["two lanes"].inject if form == "inject" else EXPECTED["two lanes"].append}


def test_every_scenario_has_an_expected_outcome() -> None:
    """The two tables have the same rows, in the same order."""
    assert list(EXPECTED) == list(SCENARIOS)
