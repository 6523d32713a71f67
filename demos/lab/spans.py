"""`suspended lab spans`: traces as OpenTelemetry's spans and metrics, in files of OTLP JSON lines.

A file of that kind holds one kind of signal, so there are two: `FILE`, and beside it the metrics.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from demos.lab.exchanges import exchanges_in
from protocol.readers import TraceError


def add_arguments(parser: ArgumentParser) -> None:
    """Of `suspended lab spans`."""
    parser.add_argument(
        "traces",
        metavar="TRACE",
        nargs="+",
        type=Path,
        help="traces, or logs that can be read as such; one or several forms",
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="the spans to write; metrics go beside them"
    )


def metrics_path(spans: Path) -> Path:
    """Where the metrics go: `x.jsonl` has them in `x.metrics.jsonl`."""
    return spans.with_name(f"{spans.stem}.metrics{spans.suffix}")


def run(arguments: Namespace) -> int:
    """Write the files; 0. `TraceError`: an input is no trace, or cannot be read; `OSError`; `ImportError`: the extra is not installed."""
    from demos.lab.telemetry import telemetry_of  # noqa: PLC0415  # the flags are known without the extra, too

    exchanges = [exchange for path in arguments.traces for exchange in exchanges_in(path)]
    if not any(exchange.lives for exchange in exchanges):
        raise TraceError(f"no response in {', '.join(map(str, arguments.traces))}; record one with --trace")
    spans = 0
    other = metrics_path(arguments.out)
    with (
        arguments.out.open("w", encoding="utf-8") as to_spans,
        other.open("w", encoding="utf-8") as to_metrics,
    ):
        for exchange in exchanges:
            told = telemetry_of(exchange)
            told.write(to_spans, to_metrics)
            spans += len(told.spans)
    print(f"{arguments.out}: {spans} spans; {other}: their metrics; both as OTLP JSON lines")
    for exchange in exchanges:
        for caveat in exchange.caveats():
            print(f"note: {caveat}")
    return 0
