"""A clean and a broken trace for each rule about what one response says."""

from collections.abc import Callable

import attrs

from tests.invariant_traces import ALL_HOOKS, Talk, alter, cut, drop, find, move, output, repeat, usage

Pair = tuple[Talk, Talk]


@attrs.frozen
class Case:
    """Two traces for a rule, and which other rules the broken one breaks as well."""

    rule: str
    make: Callable[[], Pair]
    also: frozenset[str]
    profile: str = "this-engine"


CASES: dict[str, Case] = {}


def case(
    rule: str, *also: str, profile: str = "this-engine"
) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """Registers a pair."""

    def register(make: Callable[[], Pair]) -> Callable[[], Pair]:
        CASES[rule] = Case(rule, make, frozenset(also), profile)
        return make

    return register


def http(*hooks: str, **header: object) -> Talk:
    """A turn over SSE."""
    return Talk("http", *hooks, **header).turn()


def hooked(dialect: str = "create", *hooks: str) -> Talk:
    """A trace with the engine's hooks, before its first response."""
    return Talk(dialect, *ALL_HOOKS, *hooks).ask().hook("pre_inference", response_id="r1")


@case("T1")
def event_line() -> Pair:
    clean = http()
    broken = http()
    broken.records[find(broken, "response.output_text.delta")]["event"] = "response.refusal.delta"
    return clean, broken


@case("T2")
def own_type() -> Pair:
    return Talk("append").turn(), Talk("append").ask().begin().out("response.resumed").message().end()


@case("R1", "R5")
def begins_complete() -> Pair:
    return http(), Talk("http").ask().begin(status="completed").message().end()


@case("R2")
def in_progress_late() -> Pair:
    clean = http()
    return clean, move(clean, "response.in_progress", 0, "response.content_part.added")


@case("R3")
def two_ends() -> Pair:
    clean = Talk().turn()
    return clean, alter(repeat(clean, "response.completed"), "response.completed", 1, type="response.failed")


@case("R4")
def other_status() -> Pair:
    clean = http()
    return clean, alter(clean, "response.completed", response__status="incomplete")


@case("R5")
def other_model() -> Pair:
    clean = http()
    return clean, alter(clean, "response.completed", response__model="m2")


@case("R6")
def error_then_completed() -> Pair:
    def talk(status: str) -> Talk:
        story = Talk("http").ask().begin()
        story.out("error", code="server_error", message="No.", param=None)
        return story.end(status)

    return talk("failed"), talk("completed")


@case("R7")
def no_status() -> Pair:
    return Talk().ask().error("model_not_found"), Talk().ask().error("model_not_found", status=...)


@case("R8")
def long_and_completed() -> Pair:
    def talk(status: str) -> Talk:
        story = Talk("create", "sampler_stop").ask().begin().message("cut", status=status)
        return story.hook("sampler_stop", response_id="r1", reason="length").end(status)

    return talk("incomplete"), talk("completed")


@case("N1")
def a_hole() -> Pair:
    clean = http()
    broken = http()
    for one in broken.records[find(broken, "response.output_text.done") :]:
        if isinstance(one["frame"], dict):
            one["frame"]["sequence_number"] += 1
    return clean, broken


@case("N2")
def same_index() -> Pair:
    clean = Talk().ask().begin().message().call("c1").end()
    return clean, alter(clean, "response.function_call_arguments.delta", output_index=0)


@case("N3")
def parts_from_one() -> Pair:
    clean = Talk().ask().begin().message().end()
    return clean, alter(clean, "response.content_part.added", content_index=1)


@case("I1")
def text_of_nothing() -> Pair:
    clean = Talk().ask().begin().message().end()
    story = Talk().ask().begin()
    story.out("response.output_text.delta", item_id="x", output_index=0, content_index=0, delta="x")
    return clean, story.message().end()


@case("I2")
def other_item_id() -> Pair:
    clean = http()
    return clean, alter(clean, "response.output_text.delta", item_id="msg_other")


@case("I3")
def no_content() -> Pair:
    clean = http()
    return clean, alter(clean, "response.output_item.added", item__content=...)


@case("I4", "I6")
def never_done() -> Pair:
    clean = http()
    return clean, drop(clean, "response.output_item.done")


@case("I5")
def name_lost() -> Pair:
    clean = Talk().ask().begin().call("c1").end()
    return clean, alter(clean, "response.function_call_arguments.done", name=None)


@case("I6")
def empty_output() -> Pair:
    clean = http()
    return clean, alter(clean, "response.completed", response__output=[])


@case("I7")
def call_id_again() -> Pair:
    def talk(second: str) -> Talk:
        story = Talk().ask().begin("r1").call("c1").end()
        story.ask(previous_response_id="r1", input=[output("c1")]).begin("r2", "r1")
        place = story.add(
            {"id": "fc_b", "type": "custom_tool_call", "name": "f", "call_id": second, "input": ""}
        )
        story.out("response.custom_tool_call_input.done", **place, input="")
        return story.finish(place, status="completed").end()

    return talk("c2"), talk("c1")


@case("I8")
def text_after_done() -> Pair:
    clean = http()
    story = Talk("http").ask().begin().message()
    place = {"item_id": "msg_r1_0", "output_index": 0, "content_index": 0}
    return clean, story.out("response.output_text.delta", **place, delta="x").end()


@case("I9")
def two_open() -> Pair:
    clean = Talk().ask().begin().message().message().end()
    return clean, move(clean, "response.output_item.added", 1, "response.output_item.done")


@case("I10", profile="openai")
def without_its_reasoning() -> Pair:
    def talk(*ids: str) -> Talk:
        story = Talk().ask().begin("r1").reasoning("Hm.").call("c1").end()
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_c1"}
        reasoning = {"type": "reasoning", "id": "rs_r1", "summary": []}
        items = [{"rs_r1": reasoning, "fc_c1": call}[name] for name in ids]
        return story.turn("r2", input=[*items, output("c1")])

    return talk("rs_r1", "fc_c1"), talk("fc_c1")


@case("C1")
def part_with_text() -> Pair:
    clean = http()
    return clean, alter(clean, "response.content_part.added", part__text="Hello")


@case("C2")
def part_left_open() -> Pair:
    clean = http()
    return clean, drop(clean, "response.content_part.done")


@case("C3")
def other_text() -> Pair:
    clean = http()
    return clean, alter(clean, "response.content_part.done", part__text="Help")


@case("C4")
def no_string() -> Pair:
    clean = Talk().ask().begin().message("").end()
    return clean, alter(clean, "response.output_text.delta", delta={"text": ""})


@case("C5")
def no_json() -> Pair:
    return Talk().ask().begin().call("c1").end(), Talk().ask().begin().call("c1", arguments="{").end()


@case("C6")
def never_closed() -> Pair:
    clean = Talk().ask().begin().call("c1").end()
    return clean, drop(clean, "response.function_call_arguments.done")


@case("C8")
def open_summary() -> Pair:
    clean = Talk().ask().begin().reasoning("Hm", ".").end()
    return clean, drop(clean, "response.reasoning_summary_part.done")


@case("C9")
def annotations_jump() -> Pair:
    notes = [
        {"type": "url_citation", "url": "https://a.test"},
        {"type": "url_citation", "url": "https://b.test"},
    ]
    clean = Talk().ask().begin().message("See", annotations=notes).end()
    return clean, alter(clean, "response.output_text.annotation.added", 1, annotation_index=2)


@case("C10")
def replacement() -> Pair:
    return Talk().ask().begin().message("\U0001f600 é").end(), Talk().ask().begin().message("\ufffd").end()


@case("C11")
def markup() -> Pair:
    def talk(*pieces: str) -> Talk:
        return Talk(special_tokens=["<tool_call>"]).ask().begin().message(*pieces).end()

    return talk("<tool", " call>"), talk("a <tool", "_call> b")


@case("U1")
def null_cached() -> Pair:
    clean = http()
    return clean, alter(
        clean, "response.completed", response__usage__input_tokens_details__cached_tokens=None
    )


@case("U2")
def counted_again() -> Pair:
    def talk(last: dict[str, object]) -> Talk:
        story = hooked("append").begin().call("c1").suspend("c1").append("c1").accepted("c1").resume("c1")
        story.message()
        ledger = {"uncached_input_tokens": 15, "output_tokens": 8}
        return story.hook("post_inference", response_id="r1", usage=ledger).end(segment=last)

    return talk(usage(19, 4, 14)), talk(usage(19, 8, 14))


@case("U3")
def one_key() -> Pair:
    def talk(key: str) -> Talk:
        story = Talk("create", "usage_record").turn("r1").hook("usage_record", response_id="r1", key="r1")
        return story.turn("r2", "r1").hook("usage_record", response_id="r2", key=key)

    return talk("r2"), talk("r1")


@case("U4")
def less_cached() -> Pair:
    def talk(cached: int) -> Talk:
        story = Talk().ask().begin("r1").message().end(segment=usage(90, 4, 64))
        story.ask(previous_response_id="r1").begin("r2", "r1").message()
        return story.end(segment=usage(99, 4, cached))

    return talk(90), talk(16)


__all__ = ["CASES", "Case", "case", "cut", "hooked", "http"]
