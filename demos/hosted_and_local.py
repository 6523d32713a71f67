"""A tool of the server's and a tool of the client's in one step: both run at the same time, in one loop."""

import trio
from trio.testing import MockClock

from engine.engine import Engine
from engine.hosted import HostedTool
from engine.local import memory_client
from engine.samplers.policy import PolicySampler, Say, Script, Tools, Use, program
from protocol.events import McpCallCompleted, McpCallInProgress, OutputTextDelta, ResponseDone

LOCAL = {"type": "function", "name": "read_meter", "parameters": {"type": "object"}}
HOSTED = {"type": "mcp", "server_label": "prices", "require_approval": "never"}


def model(_prompt: str, _tools: Tools) -> Script:
    """Asks both, and multiplies."""
    price, used = yield (Use("price_now", {}), Use("read_meter", {}))
    yield Say(f"{used} kWh at {price} cents are {float(used) * float(price):.0f} cents.")


async def price_now() -> float:
    """Runs in the server: its output never crosses the wire on its way to the model."""
    await trio.sleep(1)
    return 12.5


async def read_meter() -> str:
    """Runs in the client."""
    print("client  reads the meter, while the server asks for the price")
    await trio.sleep(1)
    return "40"


async def main() -> None:
    """One rollout: two tools that take a second each, and how long both took."""
    tool = HostedTool("prices", "price_now", price_now)
    engine = Engine.make(PolicySampler(program(model)), hosted_tools=[tool])
    began = trio.current_time()
    async with (
        memory_client(engine) as client,
        client.rollout(
            model="m", input="What did I use?", tools=[LOCAL, HOSTED], functions={"read_meter": read_meter}
        ) as rollout,
    ):
        async for event in rollout:
            if isinstance(event, McpCallInProgress | McpCallCompleted | ResponseDone):
                print(f"server  {event.type}")
            elif isinstance(event, OutputTextDelta):
                print(f"server  {event.delta}")
    print(f"It took {trio.current_time() - began:.0f} s, not 2.")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
