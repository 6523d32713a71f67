"""Fix the tests: a folder, four tools, one response, and a project that works at the end. `suspended demo` in few lines."""

import tempfile
from pathlib import Path

import trio

from demos.agents.repair import policy
from demos.agents.report import report_of
from demos.workshop import BROKEN_PROJECTS, Workshop, copied_project
from engine.engine import Engine
from engine.local import local_client
from engine.samplers.policy import PolicySampler
from protocol.events import OutputTextDone, ReasoningTextDone, ResponseDone


async def main() -> None:
    """Repair a copy of a broken project, and run its tests once more to be sure."""
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(copied_project(BROKEN_PROJECTS / "rates", Path(folder)))
        suspensions = 0
        async with (
            local_client(Engine.make(PolicySampler(policy))) as client,
            client.rollout(
                model="repair",
                input="Please make the tests pass.",
                tools=workshop.schemas(),
                functions=workshop.tools(),
            ) as rollout,
        ):
            async for event in rollout:
                if isinstance(event, OutputTextDone):
                    print(event.text)
                elif isinstance(event, ReasoningTextDone):
                    print(f"  ({event.text.replace(chr(10), ' ')})")
                suspensions += isinstance(event, ResponseDone)
        print(f"One response, suspended {suspensions} times. Run once more:")
        print(report_of(await workshop.run_tests()).in_words)


if __name__ == "__main__":
    trio.run(main)
