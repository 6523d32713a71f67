"""Exchanges as OpenTelemetry has them: spans of rollouts, of turns of the model and of tools, and histograms of their times.

A rollout is `invoke_agent`; in it are a `chat` for each time that the model was asked and an `execute_tool` for each call.
A suspended response is therefore several `chat`: the waiting for the client's tools is no operation of the model's, and
so a turn means the same in every form. Times are the recorder's; ids are made of the responses' own, so that the same
trace gives the same spans.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import IO, Any, Final

import attrs
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.json.file.metric_exporter import FileMetricExporter
from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from demos.lab import conventions as names
from demos.lab.exchanges import CLIENT_CALLS, Exchange, ToolRun
from demos.lab.lives import Life, Turn
from demos.lab.loose import count, object_at, text_at, total

SCOPE: Final = "demos.lab"
SERVICE: Final = "suspended-response"

Attributes = dict[str, Any]

_TOKENS: Final[Mapping[str, tuple[str, ...]]] = {
    names.INPUT_TOKENS: ("input_tokens",),
    names.OUTPUT_TOKENS: ("output_tokens",),
    names.CACHED_TOKENS: ("input_tokens_details", "cached_tokens"),
    names.REASONING_TOKENS: ("output_tokens_details", "reasoning_tokens"),
}
"""Where a usage has them."""


@attrs.frozen
class Telemetry:
    """What an exchange was, in OpenTelemetry's terms."""

    spans: tuple[ReadableSpan, ...]
    metrics: MetricsData

    def write(self, spans: IO[str], metrics: IO[str]) -> None:
        """A line of OTLP JSON to each."""
        FileSpanExporter(stream=spans).export(self.spans)
        FileMetricExporter(stream=metrics).export(self.metrics)


@attrs.frozen
class Rollout:
    """Responses of which each goes on with the outputs of the one before; one, if it can be suspended."""

    lives: tuple[Life, ...]
    tools: tuple[ToolRun, ...]

    @property
    def start_s(self) -> float:
        """When it was asked for."""
        return self.lives[0].asked_s

    @property
    def end_s(self) -> float:
        """When its last response ended."""
        return max(life.ended_s for life in self.lives if life.ended_s is not None)


def rollouts_of(exchange: Exchange) -> list[Rollout]:
    """In the order in which they were asked for."""
    first: dict[str, Life] = {}
    lives: dict[int, list[Life]] = {}
    for life in exchange.lives:
        root = first.get(life.continues or "", life)
        if life.response_id is not None:
            first[life.response_id] = root
        lives.setdefault(id(root), []).append(life)
    return [
        Rollout(
            tuple(mine), tuple(tool for tool in exchange.tools if any(tool.caller is life for life in mine))
        )
        for mine in lives.values()
    ]


def telemetry_of(exchange: Exchange) -> Telemetry:
    """Spans and metrics of an exchange, which is named as an instance of the service."""
    resource = Resource(
        {names.SERVICE_NAME: SERVICE, names.SERVICE_INSTANCE: f"{exchange.source}/{exchange.form}"}
    )
    finished, reader = InMemorySpanExporter(), InMemoryMetricReader()
    ids = _Ids()
    tracing = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False, id_generator=ids)
    tracing.add_span_processor(SimpleSpanProcessor(finished))
    metering = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    histograms = {
        key: metering.get_meter(SCOPE).create_histogram(
            metric.name,
            unit="s",
            description=metric.description,
            explicit_bucket_boundaries_advisory=names.BOUNDARIES_S,
        )
        for key, metric in names.METRICS.items()
    }
    epoch_s = _epoch_s(exchange)
    writer = _Writer(exchange, tracing.get_tracer(SCOPE), histograms, epoch_s, ids)
    for rollout in rollouts_of(exchange):
        writer.rollout(rollout)
    measured = reader.get_metrics_data() or MetricsData([])
    metering.shutdown()
    tracing.shutdown()
    times = {"start_time_unix_nano": _ns(epoch_s), "time_unix_nano": _ns(epoch_s + exchange.ended_s)}
    return Telemetry(tuple(finished.get_finished_spans()), _at(measured, times))


def _epoch_s(exchange: Exchange) -> float:
    """The wall clock's time at 0, to the second: a trace has it only as `created_at`. 1970, if not at all."""
    told = (life.created_at - life.asked_s for life in exchange.lives if life.created_at is not None)
    return next(told, 0.0)


def _at(measured: MetricsData, times: Mapping[str, int]) -> MetricsData:
    """The same, at the recorder's time and not at that of the export."""

    def moved(part: Any, *path: str) -> Any:
        if not path:
            return replace(part, **times)
        inner = getattr(part, path[0])
        if isinstance(inner, Sequence):
            return replace(part, **{path[0]: [moved(one, *path[1:]) for one in inner]})
        return replace(part, **{path[0]: moved(inner, *path[1:])})

    path = ("resource_metrics", "scope_metrics", "metrics", "data", "data_points")
    at: MetricsData = moved(measured, *path)
    return at


class _Ids(IdGenerator):
    """Numbers that depend on the response and the order only."""

    def __init__(self) -> None:
        self._seed = ""
        self._made = 0

    def begin(self, seed: str) -> None:
        self._seed, self._made = seed, 0

    def generate_trace_id(self) -> int:
        return self._number(16)

    def generate_span_id(self) -> int:
        self._made += 1
        return self._number(8)

    def _number(self, size_bytes: int) -> int:
        digest = hashlib.sha256(
            f"{self._seed}:{size_bytes}:{self._made * (size_bytes == 8)}".encode()
        ).digest()
        return int.from_bytes(digest[:size_bytes], "big")


@attrs.frozen
class _Writer:
    _exchange: Exchange
    _tracer: Tracer
    _histograms: Mapping[str, Histogram]
    _epoch_s: float
    _ids: _Ids

    def rollout(self, rollout: Rollout) -> None:
        first, last, form = rollout.lives[0], rollout.lives[-1], self._exchange.form
        self._ids.begin(f"{form} {first.response_id} {first.asked_s}")
        attributes = {
            names.AGENT_NAME: form,
            names.REQUEST_MODEL: text_at(first.request, "model"),
            names.RESPONSE_ID: last.response_id,
            **_total(rollout.lives),
        }
        span = self._span(
            names.INVOKE_AGENT, form, rollout.start_s, attributes, SpanKind.INTERNAL, None, _error(last)
        )
        context = set_span_in_context(span)
        for life in rollout.lives:
            for turn in life.turns():
                self._turn(life, turn, context)
        for tool in rollout.tools:
            self._tool(tool, context, rollout.end_s)
        span.end(self._at(rollout.end_s))

    def _turn(self, life: Life, turn: Turn, context: Context) -> None:
        is_last = bool(life.stages) and turn.stages[-1] is life.stages[-1]
        error = _error(life) if is_last else None
        model = text_at(life.request, "model")
        first_s = round(turn.chunks_s[0] - turn.start_s, 6) if turn.chunks_s else None
        attributes = {
            names.REQUEST_MODEL: model,
            names.RESPONSE_MODEL: life.model,
            names.RESPONSE_ID: life.response_id,
            names.FINISH_REASONS: _finish_reasons(life, turn, is_last=is_last),
            names.STREAM: bool(life.request["stream"]) if "stream" in life.request else None,
            names.MAX_TOKENS: life.request.get("max_output_tokens"),
            names.TEMPERATURE: _float(life.request.get("temperature")),
            names.TOP_P: _float(life.request.get("top_p")),
            names.TIME_TO_FIRST_CHUNK: first_s if self._exchange.has_times else None,
            **_usage(turn.usage),
        }
        span = self._span(names.CHAT, model, turn.start_s, attributes, SpanKind.CLIENT, context, error)
        span.end(self._at(turn.end_s))
        measured = {names.REQUEST_MODEL: model, names.RESPONSE_MODEL: life.model, names.ERROR_TYPE: error}
        self._record("duration", turn.end_s - turn.start_s, names.CHAT, measured)
        if first_s is not None:
            self._record("first_chunk", first_s, names.CHAT, measured)
        for earlier_s, later_s in pairwise(turn.chunks_s):
            self._record("chunk", later_s - earlier_s, names.CHAT, measured)

    def _tool(self, tool: ToolRun, context: Context, rollout_end_s: float) -> None:
        is_known = tool.answered_s is not None or self._exchange.has_requests
        error = "no_output" if is_known and tool.answered_s is None else None
        end_s = rollout_end_s if tool.answered_s is None else tool.answered_s
        attributes = {
            names.TOOL_NAME: tool.name,
            names.TOOL_TYPE: names.FUNCTION_TOOL,
            names.CALL_ID: tool.call_id,
        }
        kind = SpanKind.INTERNAL
        span = self._span(names.EXECUTE_TOOL, tool.name, tool.called_s, attributes, kind, context, error)
        span.end(self._at(end_s))
        measured = {names.TOOL_NAME: tool.name, names.ERROR_TYPE: error}
        if is_known:
            self._record("tool", end_s - tool.called_s, names.EXECUTE_TOOL, measured)

    def _span(
        self,
        operation: str,
        of: str | None,
        start_s: float,
        attributes: Attributes,
        kind: SpanKind,
        context: Context | None,
        error: str | None,
    ) -> Span:
        span = self._tracer.start_span(
            f"{operation} {of}" if of else operation,
            context=context,
            kind=kind,
            attributes=_said({**_common(operation), **attributes, names.ERROR_TYPE: error}),
            start_time=self._at(start_s),
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        return span

    def _record(self, key: str, seconds: float, operation: str, attributes: Attributes) -> None:
        if self._exchange.has_times:
            self._histograms[key].record(round(seconds, 6), _said({**_common(operation), **attributes}))

    def _at(self, seconds: float) -> int:
        return _ns(self._epoch_s + seconds)


def _ns(seconds: float) -> int:
    """Nanoseconds; a trace has microseconds, and a float of this size has no more."""
    return round(seconds * 1e6) * 1000


def _common(operation: str) -> Attributes:
    return {names.OPERATION: operation, names.PROVIDER_NAME: names.PROVIDER}


def _said(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _error(life: Life) -> str | None:
    if life.status is None:
        return "unfinished"
    return life.error or (
        None if life.status in {"completed", "incomplete"} else life.status.replace(" ", "_")
    )


def _finish_reasons(life: Life, turn: Turn, *, is_last: bool) -> list[str]:
    made = [item for item in life.items if turn.start_s <= item.start_s and (item.end_s or 0) <= turn.end_s]
    if is_last and life.incomplete is not None:
        return ["content_filter" if life.incomplete == "content_filter" else "length"]
    if is_last and _error(life) is not None:
        return ["error"]
    return ["tool_calls" if any(item.type in CLIENT_CALLS and item.call_id for item in made) else "stop"]


def _usage(usage: Mapping[str, Any] | None) -> Attributes:
    return {name: _tokens(usage or {}, *path) for name, path in _TOKENS.items()}


def _total(lives: Iterable[Life]) -> Attributes:
    """Of all turns; where usage was said of the whole response only, that. What is not known of each is not there."""
    parts: list[Mapping[str, Any] | None] = []
    for life in lives:
        turns = [turn.usage for turn in life.turns()]
        parts += [life.usages[-1][1]] if None in turns and life.usages else turns
    return {name: total(_tokens(part or {}, *path) for part in parts) for name, path in _TOKENS.items()}


def _tokens(usage: Mapping[str, Any], *path: str) -> int | None:
    for name in path[:-1]:
        usage = object_at(usage, name)
    return count(usage.get(path[-1]))
