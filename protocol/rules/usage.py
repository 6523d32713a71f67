"""U1 to U4: what a response says it used."""

from typing import Any

from protocol.rules.run import Run, shown
from protocol.rules.state import Response
from protocol.rules.stream_rules import U1, U2, U3, U4


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


def fault(usage: object, *, lenient: bool) -> str | None:
    """What is wrong with a usage object; None = nothing. `lenient`: its details may be null."""
    if not isinstance(usage, dict):
        return f"usage {shown(usage)}"
    for key in ("input_tokens", "output_tokens", "total_tokens"):
        if not _whole(usage.get(key)):
            return f"{key} {shown(usage.get(key))}"
    if usage["total_tokens"] != usage["input_tokens"] + usage["output_tokens"]:
        return f"total {usage['total_tokens']} of {usage['input_tokens']} + {usage['output_tokens']}"
    for key, part, whole in (
        ("input_tokens_details", "cached_tokens", "input_tokens"),
        ("output_tokens_details", "reasoning_tokens", "output_tokens"),
    ):
        details = usage.get(key)
        if details is None and lenient:
            continue
        if not isinstance(details, dict):
            return f"{key} {shown(details)}"
        for name, value in details.items():
            if name.endswith("_tokens") and not _whole(value):
                return f"{name} {shown(value)}"
        if part not in details:
            return f"no {part}"
        if details[part] > usage[whole]:
            return f"{part} {details[part]} of {whole} {usage[whole]}"
    return None


def early(run: Run, response: Response, resource: dict[str, Any]) -> None:
    """Usage of a response that has only begun."""
    if resource.get("usage") is not None:
        run.report(U1, "usage null until it is reported", shown(resource["usage"]), of=response)


def segment(run: Run, response: Response, usage: object) -> None:
    """The usage in a `response.done`."""
    if usage is None:
        return
    wrong = fault(usage, lenient=not run.engine)
    if wrong is not None:
        run.report(U1, "usage that adds up", wrong, of=response)
        return
    _segment(run, response, usage)


def _segment(run: Run, response: Response, usage: Any) -> None:
    if response.dialect == "a" and response.segments:
        before = response.segments[-1]["total"]
        if usage["input_tokens"] < before and not any(item.kind == "compaction" for item in response.items):
            run.report(
                U2,
                f"a segment that begins with the {before} tokens before it",
                f"input_tokens {usage['input_tokens']}",
                of=response,
            )
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens", 0) if isinstance(details, dict) else 0
    if not response.segments:
        _chain(run, response, cached)
    response.segments.append(
        {
            "total": usage["total_tokens"],
            "fresh": usage["input_tokens"] - cached,
            "output": usage["output_tokens"],
        }
    )
    if len(response.segments) > 1:  # only the sums and the last total are needed
        first, last = response.segments
        response.segments = [
            {
                "total": last["total"],
                "fresh": first["fresh"] + last["fresh"],
                "output": first["output"] + last["output"],
            }
        ]
    response.cached = cached


def _chain(run: Run, response: Response, cached: int) -> None:
    parent = run.known(response.parent)
    if parent is None or parent.cached is None or parent.conn is not response.conn:
        return
    since = parent.entries[-1][0] if not isinstance(parent, Response) and parent.entries else 0
    if cached < parent.cached and run.resets <= since:
        run.report(
            U4,
            f"at least the {parent.cached} cached tokens of its parent",
            f"cached_tokens {cached}",
            of=response,
            also=(parent,),
        )


def final(run: Run, response: Response, resource: dict[str, Any], kind: str) -> None:
    """The usage of a terminal event."""
    usage = resource.get("usage")
    if usage is None:
        if kind == "response.completed":
            run.report(U1, "usage on completed", "usage null", of=response)
        return
    wrong = fault(usage, lenient=False)
    if wrong is not None:
        run.report(U1, "usage that adds up", wrong, of=response)
        return
    _segment(run, response, usage)
    _ledger(run, response)


def _ledger(run: Run, response: Response) -> None:
    ledger = response.ledger
    if ledger is None or response.dialect != "a" or not response.segments:
        return
    sums = response.segments[-1]
    for key, name in (("output", "output_tokens"), ("fresh", "uncached_input_tokens")):
        if type(ledger.get(name)) is int and sums[key] != ledger[name]:
            run.report(
                U2,
                f"segments that add up to {name} {ledger[name]}",
                f"{sums[key]}",
                of=response,
            )


def record(run: Run, response_id: str, key: object, conn: Any) -> None:
    """The hook `usage_record`."""
    name = key if isinstance(key, str) else shown(key)
    before = run.usage_keys.get(name)
    of = run.known(response_id)
    if before is not None:
        run.report(
            U3,
            "a key of its own for each response",
            f"{shown(name)} again, first for {before}" if before != response_id else f"{shown(name)} twice",
            of=of,
            conn=conn,
        )
    run.usage_keys[name] = response_id
    if len(run.usage_keys) > 4096:
        run.usage_keys.popitem(last=False)
    if of is not None:
        of.reports["usage_record"] = of.reports.get("usage_record", 0) + 1
        if of.reports["usage_record"] > 1 and before is None:
            run.report(U3, "one usage record a response", "a second one", of=of)
