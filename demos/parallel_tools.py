"""Three calls at once, answered in the wrong order: the response resumes with the last, and reads them in the right one."""

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from engine.engine import Engine
from engine.local import memory_client
from engine.samplers.policy import PolicySampler, Say, Script, Tools, Use, program
from protocol.events import InjectCreated, OutputTextDelta

SECONDS = {"slow": 3, "quick": 1, "middling": 2}
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in SECONDS]


def model(_prompt: str, _tools: Tools) -> Script:
    """Calls all tools in one step."""
    answers = yield tuple(Use(name, {}) for name in SECONDS)
    yield Say(f"In the order of my calls I heard: {', '.join(answers)}.")


def tool(name: str) -> Callable[[], Awaitable[str]]:
    """A tool that takes its time."""

    async def run() -> str:
        await trio.sleep(SECONDS[name])
        print(f"after {SECONDS[name]} s  client  {name} is ready and is sent at once")
        return name

    return run


async def main() -> None:
    """One rollout in the inject form, which takes outputs at any time and answers each."""
    engine = Engine.make(PolicySampler(program(model)))
    async with (
        memory_client(engine, form="inject") as client,
        client.rollout(
            model="m", input="go", tools=TOOLS, functions={name: tool(name) for name in SECONDS}
        ) as rollout,
    ):
        async for event in rollout:
            if isinstance(event, InjectCreated):
                print("           server  accepted: response.inject.created")
            elif isinstance(event, OutputTextDelta):
                print(f"           server  {event.delta}")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
