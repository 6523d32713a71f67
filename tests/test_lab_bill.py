"""The latency bill: what it says of small logs is what a person counts on paper."""

import io
import json
from argparse import ArgumentParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.lab import bill_command
from demos.lab.bill import bill_of, totals_of
from demos.lab.chain import Chain, pieces_of
from demos.lab.chains import ChainReader
from protocol import readers

# --- small logs, as they are on the wire -----------------------------------------------------------------------------

SSE_OF_A_NAIVE_CLIENT = """\
event: response.created
data: {"type":"response.created","response":{"id":"resp_1","previous_response_id":null}}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":0},"output_tokens":10}}}

event: response.created
data: {"type":"response.created","response":{"id":"resp_2","previous_response_id":null}}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"type":"function_call","call_id":"c2","name":"f","arguments":"{}"}}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_2","usage":{"input_tokens":150,"input_tokens_details":{"cached_tokens":64},"output_tokens":20}}}

event: response.created
data: {"type":"response.created","response":{"id":"resp_3","previous_response_id":null}}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]}}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_3","usage":{"input_tokens":200,"input_tokens_details":{"cached_tokens":128},"output_tokens":5}}}

"""

USER = '{"type":"message","role":"user","content":"hi"}'  # 47 bytes
CALL = '{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}'  # 67
OUTPUT = '{"type":"function_call_output","call_id":"c1","output":"42"}'  # 60
ANSWER = '{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]}'  # 84
ANSWER_AGAIN = '{"role":"assistant","content":"ok"}'  # 35: the same, as a client may write it
MORE = '{"type":"message","role":"user","content":"more"}'  # 49
TOOLS = '[{"type":"function","name":"f"}]'  # 32


def body(*items, more=""):
    """A request: 33 bytes around its items and tools, and a comma between two items."""
    return f'{{"model":"m","input":[{",".join(items)}]{more},"tools":{TOOLS}}}'


def usage(read, cached, sampled, reasoning=None):
    """As a server says it."""
    details = "" if reasoning is None else f',"output_tokens_details":{{"reasoning_tokens":{reasoning}}}'
    return f'{{"input_tokens":{read},"input_tokens_details":{{"cached_tokens":{cached}}},"output_tokens":{sampled}{details}}}'


def header(dialect, **members):
    """Of a tap's trace."""
    directions = ["in", "out", "hook"]
    return json.dumps(
        {"trace": 1, "dialect": dialect, "source": "suspended tap", "directions": directions, **members}
    )


def line(t, conn, direction, frame):
    """A record."""
    return f'{{"t":{t},"conn":"{conn}","dir":"{direction}","frame":{frame}}}'


def post(t, conn, text):
    """A request over HTTP."""
    frame = f'{{"type":"http.request","method":"POST","path":"/v1/responses","body":{text}}}'
    return line(t, conn, "in", frame)


def created(t, conn, response_id):
    """The first event of an answer."""
    return line(t, conn, "out", f'{{"type":"response.created","response":{{"id":"{response_id}"}}}}')


def delta(t, conn):
    """Something of an answer."""
    return line(t, conn, "out", '{"type":"response.output_text.delta","delta":"o"}')


def item_done(t, conn, item):
    """An item of an answer is whole."""
    return line(t, conn, "out", f'{{"type":"response.output_item.done","item":{item}}}')


def over(t, conn, response_id, used, kind="response.completed"):
    """The end of an answer, or its pause."""
    return line(t, conn, "out", f'{{"type":"{kind}","response":{{"id":"{response_id}","usage":{used}}}}}')


TAP_OF_A_NAIVE_CLIENT = "\n".join(
    [
        header("http"),
        post(1.0, "c1", body(USER)),
        created(1.3, "c1", "resp_1"),
        delta(1.5, "c1"),
        item_done(2.0, "c1", CALL),
        over(2.1, "c1", "resp_1", usage(100, 0, 10)),
        post(5.0, "c2", body(USER, CALL, OUTPUT)),
        created(5.2, "c2", "resp_2"),
        delta(5.6, "c2"),
        item_done(6.4, "c2", ANSWER),
        over(6.5, "c2", "resp_2", usage(150, 100, 20)),
        post(9.0, "c3", body(USER, CALL, OUTPUT, ANSWER_AGAIN, MORE)),
        line(9.1, "c3", "out", '{"type":"http.response","status":429}'),
        post(9.6, "c4", body(USER, CALL, OUTPUT, ANSWER_AGAIN, MORE)),
        created(9.7, "c4", "resp_3"),
        delta(9.9, "c4"),
        item_done(10.3, "c4", ANSWER),
        over(10.4, "c4", "resp_3", usage(180, 170, 5)),
    ]
)

TAP_OF_A_SUSPENDED_RESPONSE = "\n".join(
    [
        header("append"),
        line(1.0, "c1", "in", '{"type":"response.create",' + body(USER)[1:]),  # 137 bytes
        created(1.1, "c1", "resp_1"),
        delta(1.5, "c1"),
        item_done(2.0, "c1", CALL),
        over(2.1, "c1", "resp_1", usage(100, 0, 10), "response.done"),
        line(4.0, "c1", "in", f'{{"type":"response.append","input":[{OUTPUT}]}}'),  # 97 bytes
        delta(4.1, "c1"),
        item_done(4.6, "c1", ANSWER),
        over(4.7, "c1", "resp_1", usage(120, 110, 5)),
    ]
)


# --- reading them ----------------------------------------------------------------------------------------------------


def read(text, kind=None):
    """The reader that was told of a log."""
    lines = readers.lines_of([text.encode("utf-8", "surrogatepass")])
    if kind is None:
        kind, lines = readers.detected(lines)
    reader = ChainReader()
    for entry in readers.entries(kind, lines):
        if "trace" in entry:
            reader.begin(entry, "log")
        else:
            reader.record(entry)
    reader.end()
    return reader


def bills(text):
    """One for each rollout."""
    return [bill_of(chain) for chain in read(text).chains]


def totals(text):
    """Of all of them."""
    reader = read(text)
    return totals_of([bill_of(chain) for chain in reader.chains], reader.notes)


def about(seconds):
    """Times are sums of floats."""
    return pytest.approx(seconds, abs=1e-9)


# --- the hand counts -------------------------------------------------------------------------------------------------


def test_sse_log_of_a_naive_client():
    """Its totals are those of a hand count, and what it has not is None."""
    # Answers read 100, 150 and 200 tokens and sampled 10, 20 and 5.
    # Not cached: 100, 150 - 64 = 86, 200 - 128 = 72; together 258.
    # Known before the second: 100 + 10 = 110, so 40 are new and 86 - 40 = 46 done again;
    # before the third: 150 + 20 = 170, so 30 are new and 72 - 30 = 42 done again. Sent again: 110 + 170 = 280.
    found = totals(SSE_OF_A_NAIVE_CLIENT)
    assert (found["rollouts"], found["responses"], found["calls"], found["refused_requests"]) == (1, 3, 2, 0)
    assert found["tokens"] == {
        "of": 1,
        "input_tokens": 450,
        "uncached_tokens": 258,
        "redone_tokens": 88,
        "resent_tokens": 280,
        "output_tokens": 35,
    }
    assert (found["sent"], found["seconds"]) == (None, None)
    # two responses after the first: 2 * (0.667 - 0.384), and at most all of 13.43 µs for 150 + 200 tokens more
    assert found["instead"]["create"]["seconds_saved"] == about([0.566, 0.566 + 350 * 1.343e-5])
    assert found["instead"]["suspended"]["seconds_saved"] == about([1.234, 1.234 + 350 * 1.343e-5])
    assert found["instead"]["create"]["bytes_up"] is None
    assert any(note.startswith("no requests in this log") for note in found["notes"])
    assert "no times in this log: no seconds" in found["notes"]
    (bill,) = bills(SSE_OF_A_NAIVE_CLIENT)
    assert (bill.form, bill.guessed, bill.response_id, bill.wall_seconds) == ("http", True, "resp_1", None)
    assert "its responses were put together by their order" in bill.notes


def test_tap_trace_of_a_naive_client():
    """Bytes, tokens and seconds are those of a hand count, a refused request and its repetition among them."""
    found = totals(TAP_OF_A_NAIVE_CLIENT)
    assert (found["rollouts"], found["responses"], found["calls"], found["refused_requests"]) == (1, 3, 1, 1)
    # A request is 33 + 32 bytes and its items with the commas between: 47; 47 + 67 + 60 + 2 = 176;
    # 47 + 67 + 60 + 35 + 49 + 4 = 262, twice. So 112 + 241 + 327 + 327 = 1,007.
    # Again: the tools, 32, with all but the first; 47 + 67 in the second; 47 + 67 + 60 + 35 in the third;
    # all, 258, in the fourth. So 3 * 32 + 114 + 209 + 258 = 677. Items: 1 + 3 + 5 + 5; again: 2 + 4 + 5.
    assert found["sent"] == {
        "of": 1,
        "requests": 4,
        "bytes_up": 1_007,
        "resent_bytes": 677,
        "items": 14,
        "resent_items": 11,
    }
    (bill,) = bills(TAP_OF_A_NAIVE_CLIENT)
    assert bill.sending.resent_shares == about((146 / 241, 241 / 327, 290 / 327))
    # Not cached: 100, 50, 10. Known before the second: 110, so 40 of its 50 are new; before the third: 170, so all 10.
    assert found["tokens"] == {
        "of": 1,
        "input_tokens": 430,
        "uncached_tokens": 160,
        "redone_tokens": 10,
        "resent_tokens": 280,
        "output_tokens": 35,
    }
    # waiting: 1.0 to 1.5, 5.0 to 5.6, 9.0 to 9.1 (refused), 9.6 to 9.9
    # sampling: 1.5 to 2.0, 5.6 to 6.5, 9.9 to 10.4; tools: 2.0 to 5.0; idle: 6.5 to 9.0, 9.1 to 9.6
    assert found["seconds"] == about({"of": 1, "waiting": 1.5, "sampling": 1.9, "tools": 3.0, "idle": 3.0})
    assert bill.wall_seconds == about(10.4 - 1.0)


def test_tap_trace_of_a_suspended_response():
    """One response is one rollout; what its client sends is new."""
    (bill,) = bills(TAP_OF_A_SUSPENDED_RESPONSE)
    assert (bill.form, bill.responses, bill.calls) == ("suspended", 1, 1)
    # the create: 112 and 25 for its type; the append: 37 around 60
    assert (bill.sending.bytes_up, bill.sending.resent_bytes, bill.sending.resent_items) == (137 + 97, 0, 0)
    # 10 + 110 of 100 + 120 tokens were sampled or cached; known before the second: 110
    assert (bill.reading.uncached_tokens, bill.reading.redone_tokens, bill.reading.resent_tokens) == (
        110,
        0,
        0,
    )
    # waiting: 1.0 to 1.5, 4.0 to 4.1; sampling: 1.5 to 2.0, 4.1 to 4.7; tools: 2.0 to 4.0
    assert bill.seconds == about({"waiting": 0.6, "sampling": 1.1, "tools": 2.0, "idle": 0.0})
    # with all again the append would have brought the user's message, the call and the tools besides
    assert bill.instead["http"].bytes_up == 137 + 97 + 47 + 67 + 32
    assert bill.instead["create"].bytes_up == 137 + 97 + 32
    # 0.1 s were waited after the first segment; over HTTP the constants make that 0.667 / 0.05 times as much
    low, high = bill.instead["create"].seconds_saved
    assert (low, high) == about((-0.334, -0.334))


def test_both_directions_of_an_estimate_agree():
    """What the naive client would have sent in one response is what the suspended one sends, but for the envelopes."""
    first = "\n".join(TAP_OF_A_NAIVE_CLIENT.splitlines()[:11])
    (naive,) = bills(first)
    (suspended,) = bills(TAP_OF_A_SUSPENDED_RESPONSE)
    # 112 + 241 - 146 that are sent again
    assert naive.instead["suspended"].bytes_up == 207
    # 25 for the type of the create; 37 around the output in the append, where the naive client has 33 and two commas
    assert suspended.sending.bytes_up == 207 + 25 + 37 - 35


def test_estimate_is_no_more_than_its_share_of_the_waiting():
    """A fast server has less to save than the constants say: 283 of 667 parts of what was waited, at least."""
    (bill,) = bills(TAP_OF_A_NAIVE_CLIENT)
    # 330 tokens of history cost 0.0044 s, of which the lower end saves nothing; 1.0 s was waited after the first response
    history = 330 * 1.343e-5
    own = 2 * 0.667 + history
    assert bill.instead["create"].seconds_saved == about((0.566 / own * 1.0, (0.566 + history) / own * 1.0))


# --- what goes on with what ------------------------------------------------------------------------------------------


def ask(t, conn, text):
    """A create on a WebSocket."""
    return line(t, conn, "in", '{"type":"response.create",' + text[1:])


def test_named_previous_response_goes_on():
    """In the create form the chain is what the requests say, and tools are sent again."""
    previous = ',"previous_response_id":"resp_1"'
    (bill,) = bills(
        "\n".join(
            [
                header("create"),
                ask(0.0, "c1", body(USER)),
                created(0.1, "c1", "resp_1"),
                item_done(0.2, "c1", CALL),
                over(0.3, "c1", "resp_1", usage(10, 0, 1)),
                ask(0.5, "c1", body(OUTPUT, more=previous)),
                created(0.6, "c1", "resp_2"),
                over(0.7, "c1", "resp_2", usage(20, 11, 1)),
            ]
        )
    )
    assert (bill.form, bill.responses) == ("create", 2)
    assert (bill.sending.resent_bytes, bill.sending.resent_items) == (32, 0)
    # the other way: the second request lacks the user's message and the call
    assert bill.instead["http"].bytes_up == bill.sending.bytes_up + 47 + 67
    assert bill.instead["suspended"].bytes_up == bill.sending.bytes_up - 32


def test_conversations_that_interleave_stay_apart():
    """Two rollouts that begin alike are told apart by their calls."""
    other, other_output = CALL.replace("c1", "c9"), OUTPUT.replace("c1", "c9")
    found = bills(
        "\n".join(
            [
                header("http"),
                post(1.0, "c1", body(USER)),
                post(1.1, "c2", body(USER)),
                created(1.2, "c1", "resp_1"),
                created(1.2, "c2", "resp_2"),
                item_done(1.3, "c1", CALL),
                item_done(1.3, "c2", other),
                over(1.4, "c1", "resp_1", usage(10, 0, 1)),
                over(1.4, "c2", "resp_2", usage(10, 0, 1)),
                post(2.0, "c3", body(USER, CALL, OUTPUT)),
                created(2.1, "c3", "resp_3"),
                over(2.2, "c3", "resp_3", usage(20, 0, 1)),
                post(3.0, "c4", body(USER, other, other_output)),
                created(3.1, "c4", "resp_4"),
                over(3.2, "c4", "resp_4", usage(20, 0, 1)),
            ]
        )
    )
    assert [(bill.response_id, bill.responses, bill.seconds["tools"]) for bill in found] == [
        ("resp_1", 2, about(0.7)),
        ("resp_2", 2, about(1.7)),
    ]


def test_answers_in_one_piece_are_read():
    """HTTP without a stream: all that there is comes with the body."""
    text = f'{{"type":"http.response","status":200,"body":{{"object":"response","id":"resp_1","output":[{CALL}],"usage":{usage(7, 0, 3)}}}}}'
    (bill,) = bills("\n".join([header("http"), post(1.0, "c1", body(USER)), line(2.0, "c1", "out", text)]))
    assert (bill.responses, bill.calls, bill.reading.output_tokens) == (1, 1, 3)
    assert bill.seconds == about({"waiting": 1.0, "sampling": 0.0, "tools": 0.0, "idle": 0.0})
    assert bill.notes == ("1 call without an answer at its end",)


def test_clocks_of_two_traces_are_not_compared():
    """A trace for each request: nobody knows how long the tool took."""
    one, two = TAP_OF_A_NAIVE_CLIENT.splitlines()[1:6], TAP_OF_A_NAIVE_CLIENT.splitlines()[6:11]
    (bill,) = bills("\n".join([header("http"), *one, header("http"), *two]))
    assert bill.responses == 2
    assert bill.seconds == about({"waiting": 1.1, "sampling": 1.4, "tools": 0.1, "idle": 0.0})
    assert "on 2 clocks: what passed between two of them has no time" in bill.notes


def test_traces_of_one_clock_are_compared():
    """A trace for each request whose header says when it began: the tool took what is between them."""
    one, two = TAP_OF_A_NAIVE_CLIENT.splitlines()[1:6], TAP_OF_A_NAIVE_CLIENT.splitlines()[6:11]
    (bill,) = bills("\n".join([header("http", began_s=0.25), *one, header("http", began_s=0.75), *two]))
    # the tool: 0.25 + 2.0 to 0.75 + 5.0
    assert bill.seconds == about({"waiting": 1.1, "sampling": 1.4, "tools": 3.5, "idle": 0.0})
    assert bill.notes == ()


def test_traces_that_overlap_take_no_time_back():
    """The end of one, written before the beginning of the next, may be after it."""
    one, two = TAP_OF_A_NAIVE_CLIENT.splitlines()[1:6], TAP_OF_A_NAIVE_CLIENT.splitlines()[6:11]
    (bill,) = bills("\n".join([header("http", began_s=4), *one, header("http", began_s=0), *two]))
    # 5.0 to 6.0 and 6.0 to 6.1 in the first; of the second, which began at 5.0, what is after 6.1
    assert bill.wall_seconds == about(6.5 - 5.0)
    assert min(bill.seconds.values()) >= 0


FAILED = '{"type":"response.failed","response":{"id":"resp_2","status":"failed"}}'
CANCELLED = FAILED.replace("failed", "cancelled")


@pytest.mark.parametrize(
    "ending",
    [[line(6.4, "c2", "out", FAILED)], [line(6.4, "c2", "out", CANCELLED)], []],
    ids=["failed", "cancelled", "cut off"],
)
def test_request_whose_answer_failed_is_tried_again(ending):
    """The same history once more is the same rollout, and nothing in it is new."""
    history = body(USER, CALL, OUTPUT)
    (bill,) = bills(
        "\n".join(
            [
                *TAP_OF_A_NAIVE_CLIENT.splitlines()[:6],
                post(5.0, "c2", history),
                created(5.2, "c2", "resp_2"),
                *ending,
                post(9.0, "c3", history),
                created(9.1, "c3", "resp_3"),
                over(9.2, "c3", "resp_3", usage(150, 0, 20)),
            ]
        )
    )
    # 1 + 3 + 3 items; the user's and the call again, then all three
    assert (bill.responses, bill.sending.items, bill.sending.resent_items) == (3, 7, 5)
    assert (bill.reading.input_tokens, bill.reading.redone_tokens) == (250, 110)
    assert bill.notes == ("no usage in 1 of its 3 answers: tokens are those of the others",)


def test_answer_that_failed_is_tried_again_without_requests():
    """A guess, as any other there."""
    text = SSE_OF_A_NAIVE_CLIENT.replace('"type":"function_call","call_id":"c2"', '"type":"message"')
    first, last = bills(text)
    assert (first.responses, last.responses) == (2, 1)
    (bill,) = bills(
        text.replace(
            '"response.completed","response":{"id":"resp_2"', '"response.failed","response":{"id":"resp_2"'
        )
    )
    assert (bill.responses, bill.guessed) == (3, True)


def test_responses_without_an_id_are_counted():
    """Each is one, and none has a name."""
    text = SSE_OF_A_NAIVE_CLIENT
    for number in (1, 2, 3):
        text = text.replace(f'"id":"resp_{number}",', "")
    (bill,) = bills(text)
    assert (bill.response_id, bill.responses) == (None, 3)
    assert bill.reading.input_tokens == 450


def test_response_that_is_read_on_elsewhere_is_counted_once():
    """Its events come a second time on another connection."""
    text = "\n".join([TAP_OF_A_SUSPENDED_RESPONSE, created(5.0, "c2", "resp_1"), delta(5.1, "c2")])
    (bill,) = bills(text)
    assert bill.responses == 1


def test_parallel_calls_begin_to_wait_with_the_last():
    """While the server still says the second call, it samples."""
    second = CALL.replace("c1", "c2")
    (bill,) = bills(
        "\n".join(
            [
                header("append"),
                ask(0.0, "c1", body(USER)),
                created(0.1, "c1", "resp_1"),
                delta(1.0, "c1"),
                item_done(2.0, "c1", CALL),
                item_done(3.0, "c1", second),
                over(3.5, "c1", "resp_1", "null", "response.done"),
            ]
        )
    )
    assert bill.seconds == about({"waiting": 1.0, "sampling": 2.0, "tools": 0.5, "idle": 0.0})


# --- what is not there -----------------------------------------------------------------------------------------------


def test_missing_usage_is_said():
    """No usage, no tokens, and no estimate that would need them; the tokens of other answers are what they are."""
    text = TAP_OF_A_SUSPENDED_RESPONSE.replace(usage(120, 110, 5), "null")
    (bill,) = bills(text)
    assert (bill.reading.input_tokens, bill.reading.output_tokens) == (100, 10)
    assert bill.instead["http"].seconds_saved is None
    assert "no usage in 1 of its 2 answers: tokens are those of the others" in bill.notes
    text = text.replace(usage(100, 0, 10), "null")
    (bill,) = bills(text)
    assert bill.reading is None
    assert "no usage in 2 of its 2 answers: no tokens" in bill.notes
    assert totals(text)["tokens"] is None


def test_answer_that_is_cut_off_has_no_usage():
    """It is not passed over: what it read and said is not known."""
    (bill,) = bills("\n".join(TAP_OF_A_SUSPENDED_RESPONSE.splitlines()[:-1]))
    assert bill.reading.input_tokens == 100
    assert bill.notes == ("no usage in 1 of its 2 answers: tokens are those of the others",)
    (bill,) = bills("\n".join(TAP_OF_A_SUSPENDED_RESPONSE.splitlines()[:6]))
    assert bill.notes == ("1 call without an answer at its end",)  # it pauses, and has said what it used


REASONING = '{"type":"reasoning","id":"rs_1","summary":[]}'


@pytest.mark.parametrize(
    ("items", "done_again"),
    [((USER, CALL, OUTPUT), 50), ((USER, REASONING, CALL, OUTPUT), 250)],
    ids=["left out", "sent back"],
)
def test_reasoning_is_read_again_if_it_is_sent_back(items, done_again):
    """Else the next answer cannot have read it."""
    (bill,) = bills(
        "\n".join(
            [
                header("http"),
                post(1.0, "c1", body(USER)),
                created(1.3, "c1", "resp_1"),
                item_done(1.9, "c1", REASONING),
                item_done(2.0, "c1", CALL),
                over(2.1, "c1", "resp_1", usage(1000, 0, 500, reasoning=450)),
                post(5.0, "c2", body(*items)),
                created(5.2, "c2", "resp_2"),
                over(6.5, "c2", "resp_2", usage(1250, 1000, 20)),
            ]
        )
    )
    # of 1,250 the server had 1,000, and of the 500 that were sampled those that came back: 50, or all
    assert bill.reading.redone_tokens == done_again


def test_reasoning_is_taken_to_be_left_out_without_requests():
    """That is said."""
    text = SSE_OF_A_NAIVE_CLIENT.replace(
        '"output_tokens":10}', '"output_tokens":10,"output_tokens_details":{"reasoning_tokens":8}}'
    )
    (bill,) = bills(text)
    assert bill.reading.redone_tokens == 88 - 8
    assert "its reasoning is taken not to have been sent back" in bill.notes


def test_answers_that_do_not_begin_are_said():
    """A log that has only the ends of its answers has no rollout, and it is said why."""
    text = "\n".join([header("http"), over(1.0, "c1", "resp_1", usage(1, 0, 1))])
    assert totals(text)["notes"] == ["an answer that does not begin in this log: it is not counted"]


def test_unknown_cached_tokens_are_not_none_cached():
    """A server that does not say what was cached is not said to have cached nothing."""
    text = SSE_OF_A_NAIVE_CLIENT.replace(',"input_tokens_details":{"cached_tokens":64}', "")
    (bill,) = bills(text)
    assert (bill.reading.input_tokens, bill.reading.uncached_tokens, bill.reading.redone_tokens) == (
        450,
        None,
        None,
    )
    assert "the usage does not say what was cached" in bill.notes
    assert totals(text)["tokens"]["redone_tokens"] is None


def test_usage_of_the_inject_form_gives_no_estimate():
    """It comes once: the contexts in between are not known."""
    text = TAP_OF_A_SUSPENDED_RESPONSE.replace(
        '"response.append"', '"response.inject","response_id":"resp_1"'
    )
    (bill,) = bills(text.replace('"dialect": "append"', '"dialect": "inject"'))
    assert bill.instead["http"].seconds_saved is None
    assert any(note.startswith("this form says its usage once") for note in totals(text)["notes"])


def test_log_without_answers_has_bytes_only():
    """A client's own log: what was sent, and that nothing is known besides."""
    lines = [each for each in TAP_OF_A_SUSPENDED_RESPONSE.splitlines() if '"dir":"out"' not in each]
    text = "\n".join(lines).replace('["in", "out", "hook"]', '["in"]')
    (bill,) = bills(text)
    assert (bill.responses, bill.sending.requests, bill.sending.bytes_up) == (0, 2, 234)
    assert any(note.startswith("no answers in this log") for note in totals(text)["notes"])


def test_suspended_response_without_requests_still_has_segments():
    """Its pauses are tools, and what follows one was answered unseen."""
    lines = [each for each in TAP_OF_A_SUSPENDED_RESPONSE.splitlines() if '"dir":"in"' not in each]
    (bill,) = bills("\n".join(lines).replace('["in", "out", "hook"]', '["out"]'))
    assert (bill.sending, bill.reading.input_tokens) == (None, 220)
    # from `created` on; 2.0 to 4.1 is the tool, and the way there and back
    assert bill.seconds == about({"waiting": 0.4, "sampling": 1.1, "tools": 2.1, "idle": 0.0})
    assert bill.notes == ()


def test_named_previous_response_goes_on_without_requests():
    """The server says it, so nothing is guessed."""
    text = SSE_OF_A_NAIVE_CLIENT.replace(
        '"resp_2","previous_response_id":null', '"resp_2","previous_response_id":"resp_1"'
    )
    first, *_ = bills(text)
    assert (first.form, first.responses) == ("create", 3)
    assert first.reading.resent_tokens == 0


def test_har_file_has_no_times_within_an_answer():
    """That is said."""
    entry = {
        "startedDateTime": "2026-01-01T00:00:00Z",
        "time": 500,
        "request": {"method": "POST", "url": "http://x/v1/responses", "postData": {"text": body(USER)}},
        "response": {
            "status": 200,
            "content": {
                "mimeType": "text/event-stream",
                "text": SSE_OF_A_NAIVE_CLIENT.split("event: response.created")[1],
            },
        },
    }
    entry["response"]["content"]["text"] = "event: response.created" + entry["response"]["content"]["text"]
    text = json.dumps({"log": {"entries": [entry]}})
    (bill,) = bills(text)
    assert bill.seconds["waiting"] == about(0.5)
    assert any(note.startswith("a HAR file has no times") for note in totals(text)["notes"])


def test_gaps_and_missing_bodies_are_said():
    """What the recorder could not see is not passed over."""
    request = '{"type":"http.request","method":"POST","path":"/v1/responses"}'
    text = "\n".join(
        [
            header("http"),
            line(0, "c1", "in", request),
            line(0, "c1", "hook", '{"hook":"gap","note":"too large"}'),
        ]
    )
    assert totals(text)["notes"][:2] == [
        "a request without a body in the log: it is not counted",
        "frames are missing here: too large",
    ]


def test_strange_input_is_counted_all_the_same():
    """Half a character, a number without bounds and an input that is no list: strangers send them."""
    request = '{"type":"response.create","input":"\\ud800","x":1000000000000000000000000}'
    odd = '{"type":"response.create","input":7}'
    text = "\n".join([header("create"), line(0, "c1", "in", request), line(0, "c2", "in", odd)])
    assert [bill.sending.items for bill in bills(text)] == [1, 0]


def test_what_belongs_to_nothing_is_passed_over():
    """Texts, other requests, and events of responses that the log does not begin: no rollout, and no error."""
    strays = [
        '{"t":0,"conn":"c1","dir":"in","raw":"x"}',
        line(0, "c1", "in", '{"type":"response.append","input":[]}'),
        line(0, "c1", "in", '{"type":"http.request","method":"GET","path":"/v1/responses/resp_1"}'),
        line(0, "c1", "in", '{"type":"session.update"}'),
        line(0, "c1", "hook", '{"hook":"connection_open"}'),
        delta(0, "c1"),
        over(0, "c1", "resp_1", "null"),
        line(0, "c1", "out", '{"type":"error","error":{}}'),
        line(0, "c1", "out", '{"type":"http.response","status":200}'),
        line(0, "c1", "out", '{"type":"response.inject.failed"}'),
    ]
    assert bills("\n".join([header("http"), *strays])) == []


def test_unasked_response_is_a_rollout_of_its_own():
    """A recorder that came late saw only the answer; in a log with requests nothing is guessed."""
    text = "\n".join(
        [
            header("create"),
            created(1.0, "c1", "resp_1"),
            item_done(1.5, "c1", CALL),
            over(2.0, "c1", "resp_1", "null"),
            created(3.0, "c1", "resp_2"),
        ]
    )
    assert [(bill.responses, bill.guessed) for bill in bills(text)] == [(1, False), (1, False)]


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (ANSWER, ANSWER_AGAIN),
        (CALL, CALL[:-1] + ',"id":"fc_1","status":"completed"}'),
        (
            '{"type":"reasoning","id":"rs_1","summary":[]}',
            '{"type":"reasoning","id":"rs_1","summary":[],"status":null}',
        ),
    ],
)
def test_items_are_known_again(said, sent):
    """A client may send an item back in other words than the server's."""
    (one,), (two,) = pieces_of([json.loads(said)]), pieces_of([json.loads(sent)])
    assert one.mark == two.mark


@given(
    moments=st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from(["sent", "output", "call", "over"]), st.booleans()),
        min_size=1,
    )
)
def test_each_second_is_in_one_state(moments):
    """Whatever happens in whatever order: the states add up to the time from the first thing to the last."""
    chain, clock, now = Chain("t"), object(), 0.0
    for passed, what, is_pending in moments:
        now += passed
        chain.pending = {"c1"} if is_pending else set()
        chain.moment(clock, now, what)
    assert chain.wall_seconds == pytest.approx(now - moments[0][0], abs=1e-6)
    assert 0 <= chain.later_waiting_seconds <= chain.seconds["waiting"]


# --- the command -----------------------------------------------------------------------------------------------------


def run(*words):
    """Exit code, what is said, what is complained of."""
    parser = ArgumentParser()
    bill_command.add_arguments(parser)
    out, errors = io.StringIO(), io.StringIO()
    code = bill_command.run(parser.parse_args(words), out, errors)
    return code, out.getvalue(), errors.getvalue()


@pytest.fixture
def log(tmp_path):
    """A file with a text in it."""

    def write(text, name="log"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_command_says_it_in_json(log):
    """An object for each rollout, then the totals with the exit code."""
    code, said, _ = run("--json", log(TAP_OF_A_NAIVE_CLIENT, "a"), log(SSE_OF_A_NAIVE_CLIENT, "b"))
    first, second, last = map(json.loads, said.splitlines())
    assert (code, last["totals"]["exit_code"]) == (0, 0)
    assert (first["sending"]["resent_bytes"], first["wall_seconds"]) == (677, about(9.4))
    assert (second["sending"], second["seconds"], second["wall_seconds"]) == (None, None, None)
    assert (last["totals"]["rollouts"], last["totals"]["sent"]["of"], last["totals"]["tokens"]["of"]) == (
        2,
        1,
        2,
    )
    assert last["totals"]["tokens"]["redone_tokens"] == 88 + 10


def test_command_says_it_for_people(log):
    """The rollout, the sums, the notes, and what the estimate rests on."""
    code, said, _ = run(log(TAP_OF_A_NAIVE_CLIENT))
    assert code == 0
    assert "1 rollout, 3 responses, 1 call" in said
    assert "1,007 B in 4 requests; 677 B (67%) again, 11 of 14 items" in said
    assert "280 of them sent again" in said
    assert "waiting 1.50 s, sampling 1.90 s, tools 3.00 s, idle 3.00 s" in said
    assert "as suspended  " in said
    assert "0.667 s a response over HTTP" in said
    assert "refused" in said


def test_command_says_what_a_log_does_not_show(log):
    """Not a nought, not a dash without a word."""
    code, said, _ = run(log(SSE_OF_A_NAIVE_CLIENT))
    assert code == 0
    assert said.count("the log does not show it") == 2
    assert "280 of them probably sent again" in said
    assert "no times in this log: no seconds" in said
    assert "http?" in said  # a guess


def test_command_says_costs_as_costs(log):
    """A form that would have taken longer is not said to save."""
    _, said, _ = run(log(TAP_OF_A_SUSPENDED_RESPONSE))
    assert "0.33 s more" in said


def test_no_log_is_complained_of_and_the_others_are_billed(log):
    """Exit code 2, and the totals of what could be read."""
    code, said, complaint = run(log("nonsense\n", "bad"), "missing", log(TAP_OF_A_NAIVE_CLIENT, "good"))
    assert code == bill_command.NO_TRACE
    assert "1,007 B" in said
    assert len(complaint.splitlines()) == 2


def test_what_cannot_be_read_has_no_totals(log):
    """Nothing is said of a log that is none, but why."""
    code, said, complaint = run(log("nonsense\n"))
    assert (code, said) == (bill_command.NO_TRACE, "")
    assert complaint


def test_log_with_nothing_to_bill_is_told_apart(log):
    """Exit code 3: a trace, and nobody said anything."""
    code, said, _ = run(log(header("http")))
    assert code == bill_command.NOTHING
    assert "0 rollouts" in said


def test_standard_input_is_read_once():
    """Twice is wrong usage."""
    with pytest.raises(ValueError, match="can be read once"):
        run("-", "-")


def test_standard_input_may_have_several_traces(monkeypatch):
    """Each is named by its place."""
    text = "\n".join(
        [header("http"), post(1.0, "c1", body(USER)), header("http"), post(1.0, "c1", body(MORE))]
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    _, said, _ = run("--json", "-")
    assert [json.loads(each).get("trace") for each in said.splitlines()] == [
        "standard input",
        "standard input#2",
        None,
    ]


def test_ctrl_c_leaves_the_totals(log, monkeypatch):
    """What was read before counts; the exit code is 130."""

    class Interrupted(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Interrupted())))
    code, said, _ = run("--format", "trace", log(TAP_OF_A_NAIVE_CLIENT), "-")
    assert code == bill_command.INTERRUPTED
    assert "1,007 B" in said


def test_many_rollouts_are_cut_in_the_table_only(log):
    """The sums hold all of them."""
    lines = [header("http")]
    for number in range(25):
        lines += [post(1.0, f"c{number}", body(USER)), created(1.1, f"c{number}", f"resp_{number}")]
    _, said, _ = run(log("\n".join(lines)))
    assert "and 5 more" in said
    assert "25 rollouts, 25 responses, 0 calls" in said
