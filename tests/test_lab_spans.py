"""Traces as OpenTelemetry's spans and metrics: what they say, and that they keep to the published conventions."""

from argparse import ArgumentParser
from collections import Counter

import orjson
import pytest

from demos.lab import conventions as names
from demos.lab import spans
from demos.lab.exchanges import exchanges_of
from protocol import trace
from tests.lab_traces import FORMS, LOOK_SECONDS, ODD_FRAMES, SEARCH_SECONDS, recorded

pytest.importorskip("opentelemetry.sdk", reason="needs the extra lab")
telemetry = pytest.importorskip("demos.lab.telemetry", reason="needs the extra lab")

EPOCH_NS = 1_800_000_000 * 10**9
"""When the simulation begins."""


@pytest.fixture(scope="module")
def told():
    """The telemetry of one rollout in each form."""
    return {form: of(recorded(form)) for form in FORMS}


def of(lines):
    [exchange] = exchanges_of(lines, "t")
    return telemetry.telemetry_of(exchange)


def named(one, operation):
    return [span for span in one.spans if span.attributes["gen_ai.operation.name"] == operation]


def seconds(span):
    return (span.end_time - span.start_time) / 1e9


def measured(one):
    """Of each metric: how often, and how much in all."""
    found = {}
    for metric in metrics(one):
        points = metric.data.data_points
        found[metric.name] = (
            sum(point.count for point in points),
            round(sum(point.sum for point in points), 6),
        )
    return found


def metrics(one):
    return [
        metric
        for of_resource in one.metrics.resource_metrics
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
    ]


def written(dialect, *records, **members):
    lines = [trace.header_line(dialect=dialect, source="test", hooks=(), **members)]
    lines += [trace.record_line(t, "c1", direction, frame) for t, direction, frame in records]
    return lines


CREATE = {"type": "response.create", "model": "m", "input": "hi"}
CREATED = {"type": "response.created", "response": {"id": "resp_1", "model": "m-1", "created_at": 1000}}


def ended(status, **members):
    return {"type": f"response.{status}", "response": {"id": "resp_1", "status": status, **members}}


# --- spans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_rollout_is_the_same_spans_in_every_form(told, form):
    """One rollout is one agent's span, with a chat for each of its three turns and a span for each of its three calls."""
    assert Counter(span.name for span in told[form].spans) == {
        f"invoke_agent {form}": 1,
        "chat m": 3,
        "execute_tool look": 2,
        "execute_tool search": 1,
    }
    [rollout] = named(told[form], "invoke_agent")
    assert rollout.parent is None
    assert {span.parent.span_id for span in told[form].spans if span is not rollout} == {
        rollout.context.span_id
    }
    assert {span.context.trace_id for span in told[form].spans} == {rollout.context.trace_id}


@pytest.mark.parametrize("form", FORMS)
def test_spans_lie_in_their_rollout(told, form):
    """No turn and no tool begins before the rollout or ends after it, and turns come after each other."""
    [rollout] = named(told[form], "invoke_agent")
    for span in told[form].spans:
        assert rollout.start_time <= span.start_time <= span.end_time <= rollout.end_time
    turns = named(told[form], "chat")
    edges = [edge for turn in turns for edge in (turn.start_time, turn.end_time)]
    assert edges == sorted(edges)


@pytest.mark.parametrize("form", FORMS)
def test_turns_and_what_is_between_them_add_up(told, form):
    """The turns, and the slowest tool after each, are as long as the rollout, which is as long as in the trace."""
    [exchange] = exchanges_of(recorded(form), "t")
    [rollout] = named(told[form], "invoke_agent")
    turns = sum(seconds(turn) for turn in named(told[form], "chat"))
    assert seconds(rollout) == pytest.approx(turns + SEARCH_SECONDS + LOOK_SECONDS)
    assert seconds(rollout) == pytest.approx(exchange.lives[-1].ended_s - exchange.lives[0].asked_s)


def test_turns_are_as_long_in_every_form(told):
    """With the same model and nothing between, a turn takes the same time whatever carries it."""
    lengths = [[seconds(turn) for turn in named(told[form], "chat")] for form in FORMS]
    assert lengths[1:] == lengths[:-1]


def test_a_turn_has_what_was_said_of_it(told):
    """A chat has model, response, tokens and how it ended; a turn that calls says that it stopped for its calls."""
    turns = named(told["append"], "chat")
    [response_id] = {turn.attributes["gen_ai.response.id"] for turn in turns}
    assert dict(turns[0].attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": response_id,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.response.time_to_first_chunk": 0.124,
        "gen_ai.usage.input_tokens": 49,
        "gen_ai.usage.output_tokens": 25,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 6,
    }
    reasons = [turn.attributes["gen_ai.response.finish_reasons"] for turn in turns]
    assert reasons == [("tool_calls",), ("tool_calls",), ("stop",)]


def test_usage_of_a_rollout_is_that_of_its_turns(told):
    """A rollout has used what its turns have; where only the whole was told, that, and its turns say nothing."""
    for form in ("http", "create", "append"):
        [rollout] = named(told[form], "invoke_agent")
        for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"):
            assert rollout.attributes[name] == sum(
                turn.attributes[name] for turn in named(told[form], "chat")
            )
    [rollout] = named(told["inject"], "invoke_agent")
    assert rollout.attributes["gen_ai.usage.output_tokens"] == 38
    for turn in named(told["inject"], "chat"):
        assert "gen_ai.usage.output_tokens" not in turn.attributes


def test_times_are_those_of_the_recorder(told):
    """Spans begin when the response says it was created, and metrics cover the exchange: nothing is of the export."""
    for form in FORMS:
        [rollout] = named(told[form], "invoke_agent")
        assert rollout.start_time == EPOCH_NS
        [exchange] = exchanges_of(recorded(form), "t")
        points = [point for metric in metrics(told[form]) for point in metric.data.data_points]
        assert {(point.start_time_unix_nano, point.time_unix_nano) for point in points} == {
            (EPOCH_NS, EPOCH_NS + round(exchange.ended_s * 1e9))
        }


def test_the_same_trace_gives_the_same_spans(told):
    """Ids come of the responses: exported twice, a rollout is one and not two; another form's is another."""
    again = of(recorded("append"))
    ids = [(span.context.trace_id, span.context.span_id) for span in told["append"].spans]
    assert [(span.context.trace_id, span.context.span_id) for span in again.spans] == ids
    assert len(set(ids)) == len(ids)
    assert len({one.spans[0].context.trace_id for one in told.values()}) == len(FORMS)


def test_two_rollouts_are_two_traces():
    """Rollouts that follow each other have no span in common, in every form."""
    for form in FORMS:
        rollouts = named(of(recorded(form, rollouts=2)), "invoke_agent")
        assert len({rollout.context.trace_id for rollout in rollouts}) == 2


@pytest.mark.parametrize(
    ("answer", "error", "reasons"),
    [
        (ended("failed", error={"code": "server_error"}), "server_error", ("error",)),
        (ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), None, ("length",)),
        (ended("incomplete", incomplete_details={"reason": "content_filter"}), None, ("content_filter",)),
        (ended("completed"), None, ("stop",)),
    ],
)
def test_how_a_turn_ended_is_said(answer, error, reasons):
    """A failed turn has the type of its error, and so has its rollout; one that was cut short says by what."""
    one = of(written("create", (0, "in", CREATE), (1, "out", CREATED), (2, "out", answer)))
    [turn] = named(one, "chat")
    assert turn.attributes["gen_ai.response.finish_reasons"] == reasons
    for span in one.spans:
        assert span.attributes.get("error.type") == error
        assert span.status.is_ok is (error is None)


def test_what_never_ended_is_an_error():
    """A response that its trace does not end, and a call without an output, are marked; a refused request has no response."""
    call = {"type": "function_call", "id": "fc_1", "name": "look", "call_id": "call_1"}
    cut = of(
        written(
            "append",
            (0, "in", CREATE),
            (1, "out", CREATED),
            (2, "out", {"type": "response.output_item.done", "item": call}),
        )
    )
    assert {span.name: span.attributes["error.type"] for span in cut.spans} == {
        "chat m": "unfinished",
        "execute_tool look": "no_output",
        "invoke_agent append": "unfinished",
    }
    refused = of(
        written("create", (0, "in", CREATE), (1, "out", {"type": "error", "error": {"code": "busy"}}))
    )
    assert {span.attributes["error.type"] for span in refused.spans} == {"busy"}
    assert {"gen_ai.response.id" in span.attributes for span in refused.spans} == {False}


@pytest.mark.parametrize("created", [CREATED, None])
@pytest.mark.parametrize("frame", ODD_FRAMES, ids=str)
def test_odd_frames_of_a_server_are_told(frame, created):
    """Members that are not what they should be are taken for missing, before a response and in it; there are spans all the same."""
    frames = [(1, "out", each) for each in (created, frame) if each is not None]
    one = of(written("create", (0, "in", CREATE), *frames))
    assert len(named(one, "invoke_agent")) == 1


def test_tokens_that_were_not_said_are_not_none():
    """A usage without details has none of what they would say, for a turn and for its rollout; what is no number is not told."""
    answer = ended("completed", usage={"input_tokens": 7, "output_tokens": "many"})
    one = of(written("create", (0, "in", CREATE), (1, "out", CREATED), (2, "out", answer)))
    for span in one.spans:
        assert {name: value for name, value in span.attributes.items() if ".usage." in name} == {
            "gen_ai.usage.input_tokens": 7
        }


CALLED = {
    "type": "response.output_item.done",
    "item": {"type": "function_call", "id": "fc_1", "name": "look", "call_id": "call_1"},
}
PIECE = {"type": "response.output_text.delta", "delta": "o"}


def unasked(*times):
    """An answer with a piece and a call, without its request."""
    frames = (CREATED, PIECE, CALLED, ended("completed"))
    records = [(t, "out", frame) for t, frame in zip(times, frames, strict=True)]
    return written("http", *records, directions=["out"])


def test_a_log_without_requests_has_no_tools_that_failed():
    """When a call got its output is not known: it is neither an error nor measured; the turn is."""
    one = of(unasked(0, 1, 2, 3))
    [tool] = named(one, "execute_tool")
    assert "error.type" not in tool.attributes
    assert tool.status.is_ok
    assert {name: count for name, (count, _) in measured(one).items()} == {
        "gen_ai.client.operation.duration": 1,
        "gen_ai.client.operation.time_to_first_chunk": 1,
    }


def test_a_log_without_times_has_no_measurements():
    """No duration and no first piece at 0 s: nobody took the time."""
    one = of(unasked(0, 0, 0, 0))
    [turn] = named(one, "chat")
    assert measured(one) == {}
    assert "gen_ai.response.time_to_first_chunk" not in turn.attributes


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_metrics_count_what_the_spans_show(told, form):
    """Each turn is measured once, its first piece once, each later piece once and each call once, all in seconds."""
    found = measured(told[form])
    turns, tools = named(told[form], "chat"), named(told[form], "execute_tool")
    firsts = [turn.attributes["gen_ai.response.time_to_first_chunk"] for turn in turns]
    assert found["gen_ai.client.operation.duration"] == (3, pytest.approx(sum(map(seconds, turns))))
    assert found["gen_ai.client.operation.time_to_first_chunk"] == (3, pytest.approx(sum(firsts)))
    assert found["gen_ai.execute_tool.duration"] == (3, pytest.approx(sum(map(seconds, tools))))
    [exchange] = exchanges_of(recorded(form), "t")
    pieces = sum(len(life.chunks_s) for life in exchange.lives)
    assert found["gen_ai.client.operation.time_per_output_chunk"][0] == pieces - 3
    assert {metric.unit for metric in metrics(told[form])} == {"s"}


# --- the conventions -------------------------------------------------------------------------------------------------


def constants(module):
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def test_names_are_those_of_the_conventions():
    """Each attribute, operation, provider and metric of ours is in the package of the conventions, but for what is marked."""
    reason = "needs the package opentelemetry-semantic-conventions"
    attributes = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes", reason=reason
    )
    from opentelemetry.semconv._incubating.attributes import service_attributes
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
    from opentelemetry.semconv.attributes import error_attributes

    known = constants(attributes) | constants(service_attributes) | constants(error_attributes)
    assert set(names.ATTRIBUTES) - known == set()
    assert set(names.OPERATIONS) <= {one.value for one in attributes.GenAiOperationNameValues}
    assert names.PROVIDER in {one.value for one in attributes.GenAiProviderNameValues}
    in_package = {metric.name for metric in names.METRICS.values() if metric.is_in_package}
    assert {metric.name for metric in names.METRICS.values()} & constants(gen_ai_metrics) == in_package
    assert len(in_package) == 3


def test_the_metric_of_tools_is_that_of_opentelemetry_s_own_library():
    """The one name that the conventions' package does not have yet is the one that OpenTelemetry's own library measures by."""
    instruments = pytest.importorskip(
        "opentelemetry.util.genai._instruments", reason="needs the package opentelemetry-util-genai"
    )
    assert names.METRICS["tool"].name == instruments._GEN_AI_EXECUTE_TOOL_DURATION
    assert list(names.BOUNDARIES_S) == instruments._GEN_AI_EXECUTE_TOOL_DURATION_BUCKETS


def test_spans_have_no_other_names(told):
    """Whatever a span, a measurement or a resource says is in the table of names."""
    for one in told.values():
        points = [point for metric in metrics(one) for point in metric.data.data_points]
        said = {name for each in (*one.spans, *points) for name in each.attributes}
        said |= set(one.spans[0].resource.attributes)
        assert said - set(names.ATTRIBUTES) == set()


@pytest.mark.parametrize("form", FORMS)
def test_spans_comply_with_the_conventions(told, form):
    """Required attributes, their types and values, span kinds and names are as the conventions' checker wants them."""
    checker = pytest.importorskip("pytest_genai_semconv", reason="needs the package pytest-genai-semconv")
    checks = {
        "invoke_agent": checker.assert_invoke_agent_span,
        "chat": checker.assert_chat_span,
        "execute_tool": checker.assert_execute_tool_span,
    }
    for span in told[form].spans:
        checker.assert_genai_span_compliant(span)
        checks[span.attributes["gen_ai.operation.name"]](span)


# --- the command -----------------------------------------------------------------------------------------------------


def parsed(*words):
    parser = ArgumentParser()
    spans.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_the_command_writes_spans_and_metrics(tmp_path, capsys):
    """Each form is a line of OTLP JSON in both files: the spans in one, the histograms in the other."""
    paths = []
    for form in ("http", "append"):
        paths.append(tmp_path / f"my-{form}.jsonl")
        paths[-1].write_bytes(b"".join(recorded(form)))
    out = tmp_path / "told.jsonl"
    assert spans.run(parsed(*paths, "--out", out)) == 0
    lines = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    assert [instance(line["resourceSpans"]) for line in lines] == ["my-http/http", "my-append/append"]
    assert [len(line["resourceSpans"][0]["scopeSpans"][0]["spans"]) for line in lines] == [7, 7]
    other = tmp_path / "told.metrics.jsonl"
    lines = [orjson.loads(line) for line in other.read_bytes().splitlines()]
    assert [instance(line["resourceMetrics"]) for line in lines] == ["my-http/http", "my-append/append"]
    for line in lines:
        written_down = line["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        assert {metric["name"] for metric in written_down} == {one.name for one in names.METRICS.values()}
    assert capsys.readouterr().out == f"{out}: 14 spans; {other}: their metrics; both as OTLP JSON lines\n"


def instance(of_resources):
    attributes = {one["key"]: one["value"] for one in of_resources[0]["resource"]["attributes"]}
    return attributes["service.instance.id"]["stringValue"]


def test_the_command_refuses_a_trace_without_responses(tmp_path):
    """A trace in which nothing was asked is refused before a file is written; the error names it and the way out."""
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(trace.header_line(dialect="append", source="test"))
    with pytest.raises(trace.TraceError, match=r"no response in .*empty.jsonl; record one with --trace"):
        spans.run(parsed(empty, "--out", tmp_path / "out.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["empty.jsonl"]


def test_the_command_says_what_a_log_does_not_show(tmp_path, capsys):
    """No times, no requests: a note for each, after the files."""
    log, out = tmp_path / "log.jsonl", tmp_path / "told.jsonl"
    log.write_bytes(b"".join(unasked(0, 0, 0, 0)))
    assert spans.run(parsed(log, "--out", out)) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "note: log, http: no times in this log, all are shown as 0",
        "note: log, http: no requests in this log; when a call got its output is not known",
    ]
