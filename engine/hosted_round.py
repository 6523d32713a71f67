"""One round of hosted calls: the tools run at once, their items are written one after the other (reference 8A, 2.3)."""

from collections.abc import Sequence

import attrs
import trio

from engine.assembly import Assembly
from engine.hosted import HostedCall, HostedResult, HostedTools
from engine.outbox import Outbox


@attrs.define
class _Answer:
    """Where a tool's task leaves its result for the writer."""

    result: HostedResult = attrs.field(factory=HostedResult)
    known: trio.Event = attrs.field(factory=trio.Event)


async def run_hosted_round(
    calls: Sequence[HostedCall], tools: HostedTools, assembly: Assembly, outbox: Outbox
) -> None:
    """Run and write all calls of a segment. A checkpoint if there are any; never raises but `Cancelled`."""
    if not calls:
        return
    answers = [_Answer() for _ in calls]

    async def run(call: HostedCall, answer: _Answer) -> None:
        answer.result = await tools.run(call.label, call.name, call.arguments)
        answer.known.set()

    async with trio.open_nursery() as nursery:
        for call, answer in zip(calls, answers, strict=True):
            nursery.start_soon(run, call, answer)
        for call, answer in zip(calls, answers, strict=True):
            assembly.write_hosted_start(call)
            outbox.flush()
            await answer.known.wait()
            assembly.write_hosted_end(call, answer.result.output, answer.result.error)
            outbox.flush()
