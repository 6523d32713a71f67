"""A clean and a broken trace for each rule about several responses, both directions, hooks and time."""

from tests.invariant_stream_cases import Pair, case, cut, hooked
from tests.invariant_traces import ALL_HOOKS, Talk, alter, drop, output


def stored(**header: object) -> Talk:
    """A stored response."""
    return Talk(**header).turn("r1", store=True)


@case("W1", "R3")
def two_at_once() -> Pair:
    def talk(*, over: bool) -> Talk:
        story = Talk().ask().ask().begin("r1").message()
        return (story.end() if over else story).begin("r2").message().end()

    return talk(over=True), talk(over=False)


@case("W2")
def lane_lost() -> Pair:
    def lanes(lane: str | None) -> Talk:
        story = Talk().on("c1", "A").turn("r1").ask(previous_response_id="zz")
        return story.on("c1", lane).missing("zz")

    return lanes("A"), lanes(None)


@case("W3", "N1")
def goes_on_counting() -> Pair:
    clean = Talk().turn("r1").turn("r2", "r1")
    broken = Talk().turn("r1").turn("r2", "r1")
    for one in broken.records[-11:]:
        if "sequence_number" in one["frame"]:
            one["frame"]["sequence_number"] += 10
    return clean, broken


@case("W4")
def latest_not_found() -> Pair:
    clean = Talk().turn("r1").ask(previous_response_id="zz").missing("zz")
    return clean, Talk().turn("r1").ask(previous_response_id="r1").missing("r1")


@case("W5")
def not_evicted() -> Pair:
    def talk() -> Talk:
        return Talk().turn("r1").ask(previous_response_id="r1", input=[output("c9")]).error(None, "Bad.")

    return talk().ask(previous_response_id="r1").missing("r1"), talk().turn("r2", "r1")


@case("W6")
def another_key() -> Pair:
    keys = {"c1": "a", "c2": "b"}
    clean = stored(principals=keys).on("c2").ask(previous_response_id="r1").missing("r1")
    return clean, stored(principals=keys).on("c2").turn("r2", "r1", store=True)


@case("W7")
def warm_up_samples() -> Pair:
    def talk(tokens: int) -> Talk:
        used = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": tokens}
        used |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 3 + tokens}
        return Talk().ask(generate=False).begin("r1").end(segment=used)

    return talk(0), talk(2)


@case("W8")
def former_response() -> Pair:
    clean = Talk().turn("r1").turn("r2", "r1")
    story = Talk().turn("r1").ask().begin("r2")
    at = {"item_id": "msg_r1_0", "output_index": 0, "content_index": 0}
    story.out("response.output_text.delta", **at, delta="old", sequence_number=9)
    story.numbers["r2"] = 2
    return clean, story.message().end()


@case("W9")
def cut_at_the_limit() -> Pair:
    def talk(*, over: bool) -> Talk:
        story = Talk("create", "connection_close").ask().begin().message()
        if over:
            story.end()
        story.error("websocket_connection_limit_reached")
        return story.hook("connection_close", by="server", code=1000)

    return talk(over=True), talk(over=False)


@case("W10")
def first_frame_lost() -> Pair:
    def talk() -> Talk:
        return Talk("create", "connection_open", "connection_close").hook("connection_open")

    return talk().turn(), talk().ask().wait(3600).hook("connection_close", by="client")


@case("W12")
def fork_spoils_source() -> Pair:
    def talk() -> Talk:
        story = Talk().on("c1", "A").turn("r1").on("c1", "B")
        story.ask(previous_response_id="r1", input=[output("c9")]).error(None, "No tool call found.")
        return story.on("c1", "A")

    return talk().turn("r2", "r1"), talk().ask(previous_response_id="r1").missing("r1")


@case("W13")
def call_left_open() -> Pair:
    def talk() -> Talk:
        return Talk().ask().begin("r1").call("c1").end()

    return talk().turn("r2", "r1", input=[output("c1")]), talk().turn("r2", "r1", input="never mind")


@case("W14")
def inherits() -> Pair:
    def talk(*inherited: str) -> Talk:
        story = Talk("create", "context").turn("r1").ask().begin("r2")
        return (
            story.hook("context", response_id="r2", inherited=list(inherited), input_items=1).message().end()
        )

    return talk(), talk("r1")


@case("W15")
def words_lost() -> Pair:
    def talk(words: str) -> Talk:
        story = Talk().ask().begin().message()
        story.sends("response.steer", previous_response_id="r1", input="shorter")
        steer = {"previous_response_id": "r1", "input": words}
        error = {"type": "invalid_request_error", "code": "response_not_active", "message": "No."}
        return story.out("response.steer.failed", steer=steer, error=error).end()

    return talk("shorter"), talk("longer")


def paused(*call_ids: str) -> Talk:
    """Suspended, without hooks."""
    return Talk("append").ask().begin().call(*call_ids).pause()


def suspended(*call_ids: str, dialect: str = "append") -> Talk:
    """Suspended, with hooks."""
    return hooked(dialect).begin().call(*call_ids).suspend(*call_ids)


def over(story: Talk, *, message: bool = True) -> Talk:
    """To the end, with hooks."""
    story = story.message() if message else story
    return story.hook("post_inference", response_id="r1").end()


@case("S1")
def pause_without_calls() -> Pair:
    return paused("c1"), Talk("append").ask().begin().message().pause().end()


@case("S2")
def ended_while_paused() -> Pair:
    return paused("c1").append("c1").message().end(), paused("c1").end()


@case("S3")
def goes_on_alone() -> Pair:
    return paused("c1").append("c1").message().end(), paused("c1").message().end()


@case("S4")
def unknown_call_taken() -> Pair:
    clean = suspended("c1").append("c1").accepted("c1").resume("c1")
    return over(clean), suspended("c1").append("c9").accepted("c9")


@case("S5")
def other_kind() -> Pair:
    def talk(kind: str) -> Talk:
        return paused("c1").append(input=[output("c1", kind=kind)]).message().end()

    return talk("function_call"), talk("custom_tool_call")


@case("S6")
def resumes_early() -> Pair:
    return paused("c1", "c2").append("c1").append("c2").message().end(), paused("c1", "c2").append(
        "c1"
    ).message().end()


@case("S7")
def second_output() -> Pair:
    clean = (
        paused("c1", "c2")
        .append("c1")
        .append("c1")
        .error("invalid_input", "Tool call 'c1' already has an output.")
    )
    return clean, suspended("c1", "c2").append("c1").accepted("c1").append("c1").accepted("c1")


@case("S8")
def wrong_code() -> Pair:
    def talk(code: str) -> Talk:
        return paused("c1").append("c1").message().end().append("c1").error(code)

    return talk("no_response_in_progress"), talk("invalid_input")


@case("S10")
def post_twice() -> Pair:
    clean = over(hooked().begin())
    return clean, over(hooked().begin().hook("post_inference", response_id="r1"))


@case("S11")
def arrival_order() -> Pair:
    def talk(*order: str) -> Talk:
        story = suspended("c1", "c2").append("c2").accepted("c2").append("c1").accepted("c1")
        return over(story.resume(*order))

    return talk("c1", "c2"), talk("c2", "c1")


@case("S12", "I6")
def output_among_output() -> Pair:
    clean = Talk("inject").ask().begin().call("c1").inject("c1").taken().message().end()
    broken = alter(clean, "response.completed")
    broken.records[-1]["frame"]["response"]["output"].insert(1, output("c1"))
    return clean, broken


@case("S13")
def for_ever() -> Pair:
    def talk(seconds: float) -> Talk:
        story = (
            Talk("append", *ALL_HOOKS, suspend_deadline_s=60).ask().hook("pre_inference", response_id="r1")
        )
        return story.begin().call("c1").suspend("c1").wait(seconds).hook("tick")

    return talk(30), talk(600)


@case("S14")
def cancelled_yet_completed() -> Pair:
    def talk(status: str) -> Talk:
        story = Talk().ask().begin().message().on("c2")
        story.sends("http.request", method="POST", path="/v1/responses/r1/cancel")
        story.record(
            "out", {"type": "http.response", "status": 200, "body": {"id": "r1", "status": "cancelled"}}
        )
        return story.on("c1").end(status)

    return talk("cancelled"), talk("completed")


@case("S15")
def replay_with_a_hole() -> Pair:
    def talk(*numbers: int) -> Talk:
        story = (
            Talk("append", "attach", "connection_close", durability="process")
            .ask()
            .begin()
            .call("c1")
            .pause()
        )
        sent = {one["frame"].get("sequence_number"): one["frame"] for one in story.records}
        story.hook("connection_close", by="network").on("c2")
        story.hook("attach", response_id="r1", starting_after=4)
        for number in numbers:
            story.record("out", sent[number])
        return story.append("c1").message().end()

    return talk(5, 6), talk(6)


@case("S16")
def samples_on() -> Pair:
    def talk(seconds: float) -> Talk:
        story = Talk("create", "connection_close", "sampler_step").ask().begin().message()
        story.hook("connection_close", by="network").wait(seconds)
        return story.hook("sampler_step", response_id="r1", n=1)

    return talk(0.1), talk(20)


@case("S17")
def superseded_writer() -> Pair:
    def talk(writer: str) -> Talk:
        story = Talk("append", "attach", "accepted").ask().begin().call("c1").pause()
        story.on("c2").hook("attach", response_id="r1", starting_after=6)
        return story.on(writer).append("c1").accepted("c1").on("c2").message().end()

    return talk("c2"), talk("c1")


@case("S19", "R3")
def a_call_of_another() -> Pair:
    def talk(call_id: str) -> Talk:
        story = Talk("inject").on("c1", "A").ask().begin("r1").call("c1")
        story.on("c1", "B").ask().begin("r2").call("c2").on("c1", "A")
        story.current = "r1"
        return story.inject(call_id).taken()

    clean = talk("c1").message().end().on("c1", "B")
    clean.current = "r2"
    return clean.inject("c2").taken().message().end(), talk("c2")


@case("S20")
def no_answer() -> Pair:
    clean = Talk("inject").ask().begin().call("c1").inject("c1").taken().message().end()
    return clean, drop(clean, "response.inject.created")


@case("S21")
def bound_reached() -> Pair:
    def talk(status: str) -> Talk:
        story = Talk("create", "sampler_stop").ask().begin().message()
        story.hook("sampler_stop", response_id="r1", reason="max_rounds")
        return story.end(status)

    return talk("incomplete"), talk("completed")


@case("S22")
def wrong_snapshot() -> Pair:
    def talk(*, right: bool) -> Talk:
        story = Talk("append").ask().begin().call("c1")
        items = [dict(one) for one in story.items["r1"]] if right else []
        return story.out("response.done", response={"id": "r1", "output": items})

    return talk(right=True), talk(right=False)


@case("S23")
def two_resumes() -> Pair:
    def talk() -> Talk:
        return suspended("c1").append("c1").accepted("c1").resume("c1")

    return over(talk()), over(talk().resume("c1"))


@case("S24")
def too_early() -> Pair:
    clean = paused("c1").append("c1").message().end()
    return clean, paused("c1").append("c1").error("no_response_in_progress")


@case("S25")
def answered_late() -> Pair:
    def talk(seconds: float) -> Talk:
        return Talk("inject").ask().begin().call("c1").inject("c1").wait(seconds).taken().message().end()

    return talk(0.5), talk(30)


def durable(*hooks: str) -> Talk:
    """A durable trace."""
    return Talk("append", "accepted", "journal", "recovered", "crash", *hooks, durability="process")


def journaled(story: Talk) -> Talk:
    """The same, with each event in the journal first."""
    told: list[dict[str, object]] = []
    for one in story.records:
        number = one["frame"].get("sequence_number") if one["dir"] == "out" else None
        if number is not None:
            frame = {"hook": "journal", "response_id": "r1", "sequence_number": number}
            told.append({**one, "dir": "hook", "frame": frame})
        told.append(one)
    story.records = told
    return story


@case("D1")
def forgotten() -> Pair:
    def talk(*pending: str) -> Talk:
        story = durable().ask().begin().call("c1", "c2").pause().append("c1")
        story.hook("journal", response_id="r1", call_ids=["c1"]).accepted("c1").hook("crash")
        return journaled(
            story.hook("recovered", response_id="r1", pending=list(pending), next_sequence_number=11)
        )

    return talk("c2"), talk("c1", "c2")


@case("D2")
def sent_first() -> Pair:
    def talk() -> Talk:
        return journaled(durable().turn())

    broken = talk()
    at = next(
        number
        for number, one in enumerate(broken.records)
        if one["frame"].get("hook") == "journal" and one["frame"]["sequence_number"] == 4
    )
    del broken.records[at]
    return talk(), broken


@case("L1")
def slot_held() -> Pair:
    def talk(seconds: float) -> Talk:
        story = Talk("create", "slot_acquire", "slot_release").ask().hook("slot_acquire", response_id="r1")
        return story.begin().message().end().wait(seconds).hook("slot_release", response_id="r1")

    return talk(0.01), talk(4)


@case("L2")
def over_the_limit() -> Pair:
    def talk(size: int) -> Talk:
        return Talk("create", "buffer").hook("buffer", bytes=size, limit=100, what="unread")

    return talk(100), talk(101)


def group(words: str) -> list[Talk]:
    """The same rollout in two forms, and in a third that says `words`."""
    chain = Talk("create", group="g").ask().begin("r1").call("c1").end()
    chain.ask(previous_response_id="r1", input=[output("c1")]).begin("r2", "r1").message("done").end()
    inject = Talk("inject", group="g").ask().begin().call("c7").inject("c7").taken().message("do", "ne")
    inject.end(
        segment={**chain.records[-1]["frame"]["response"]["usage"], "output_tokens": 8, "total_tokens": 18}
    )
    append = Talk("append", group="g").ask().begin().call("c1").pause().append("c1").message(words)
    return [
        chain,
        inject,
        append.end(
            segment={
                **chain.records[-1]["frame"]["response"]["usage"],
                "input_tokens": 14,
                "total_tokens": 18,
            }
        ),
    ]


__all__ = ["cut", "group"]
