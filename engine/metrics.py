"""`/metrics`: what the server did and holds, as Prometheus text. The only module that knows prometheus-client.

Nothing is counted twice: counts that the engine keeps anyway are read when somebody asks.
Only responses are counted here, each once, from the engine's report of its end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from engine.engine import RolloutReport

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_NAMESPACE: Final = "suspended"


@attrs.frozen
class Reading:
    """One value that is read when asked for. `counts`: it only ever grows."""

    name: str
    help: str
    value: float
    counts: bool = False


class Metrics(Collector):
    """A server's metrics. `readings`: what to read besides the responses."""

    def __init__(self, readings: Callable[[], Iterable[Reading]]) -> None:
        self._readings = readings
        self._responses: Counter[tuple[str, str]] = Counter()
        self._stages: Counter[str] = Counter()
        self._work: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def listening(self, others: Callable[[RolloutReport], None] | None) -> Callable[[RolloutReport], None]:
        """What to tell of each rollout's end; `others` are told as well."""

        def on_report(report: RolloutReport) -> None:
            self._responses[report.dialect, report.status] += 1
            self._stages.update(report.hooks)
            self._work.update(report.work)
            if others is not None:
                others(report)

        return on_report

    def text(self) -> bytes:
        """All metrics, as text. Not a checkpoint."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Nothing: no other collector shares the registry."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """What prometheus-client asks for."""
        responses = CounterMetricFamily(
            f"{_NAMESPACE}_responses", "Responses that ended, by form and status.", labels=("form", "status")
        )
        for labels, count in sorted(self._responses.items()):
            responses.add_metric(labels, count)
        yield responses
        stages = CounterMetricFamily(
            f"{_NAMESPACE}_stages", "How often each stage or hook point of a rollout ran.", labels=("stage",)
        )
        for stage, count in sorted(self._stages.items()):
            stages.add_metric((stage,), count)
        yield stages
        work = CounterMetricFamily(
            f"{_NAMESPACE}_work",
            "What the stages did and what they reused, in its own unit.",
            labels=("what",),
        )
        for what, amount in sorted(self._work.items()):
            work.add_metric((what,), amount)
        yield work
        for reading in self._readings():
            family = CounterMetricFamily if reading.counts else GaugeMetricFamily
            yield family(f"{_NAMESPACE}_{reading.name}", reading.help, value=reading.value)
