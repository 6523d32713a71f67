"""A tool that is a person: the response stays suspended for a day and goes on as if nothing had been.

Time is virtual here, everything else is real. Suspended, the rollout holds no sampler slot; keep-alive pings pass every
30 s, the deadline of a suspension is switched off by the limit `suspend_timeout_seconds=0`, and the connection may be
older than the usual hour.
"""

import trio
from trio.testing import MockClock

from engine.config import Limits
from engine.engine import Engine, RolloutReport
from engine.local import memory_client
from engine.samplers.policy import PolicySampler, Say, Script, Tools, Use, program

DAY_SECONDS = 24 * 60 * 60
APPROVE = {"type": "function", "name": "approve", "parameters": {"type": "object"}}


def model(_prompt: str, _tools: Tools) -> Script:
    """Asks before it acts."""
    answer = yield Use("approve", {"what": "delete the old backups"})
    yield Say(f"You said {answer!r}, so I go on.")


async def approve(what: str) -> str:
    """The person."""
    print(f"09:00  asked whether to {what}; goes home, sleeps on it")
    await trio.sleep(DAY_SECONDS)
    print("09:00  the day after: says yes")
    return "yes"


async def main() -> None:
    """One rollout of a day."""
    reports: list[RolloutReport] = []
    engine = Engine.make(
        PolicySampler(program(model)),
        limits=Limits(suspend_timeout_seconds=0, max_connection_seconds=2 * DAY_SECONDS),
        clock_ns=lambda: int(trio.current_time() * 1e9),
        on_report=reports.append,
    )
    async with memory_client(engine) as client:
        async with client.rollout(
            model="m", input="tidy up", tools=[APPROVE], functions={"approve": approve}
        ) as rollout:
            await rollout.wait_ended()
            print(f"       {rollout.text}")
        print(f"       {client.bytes_in:,} bytes came in, a day of keep-alive pings among them")
    ledger = reports[0].ledger
    share, hours = ledger.stages["suspended"] / ledger.wall_ns, ledger.wall_ns / 3.6e12
    print(f"       of {hours:.1f} hours the response was suspended for {share:.3%}")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
