"""One tool: the response suspends at the call and goes on, the same response, when the output is there."""

import trio

from engine.engine import Engine
from engine.local import local_client
from engine.samplers.policy import PolicySampler, Say, Script, Tools, Use, program
from protocol.events import FunctionCallArgumentsDone, OutputTextDelta, ResponseCreated, ResponseDone

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def model(_prompt: str, _tools: Tools) -> Script:
    """What stands for the model: asks for the weather, and tells it."""
    weather = yield Use("weather", {"city": "Oslo"})
    yield Say(f"In Oslo it is {weather}.")


async def weather(city: str) -> str:
    """The client's tool."""
    print(f"   tool   weather({city!r}) runs here, in the client")
    return "sunny, -4 °C"


async def main() -> None:
    """One rollout, told event by event."""
    engine = Engine.make(PolicySampler(program(model)))
    async with (
        local_client(engine) as client,
        client.rollout(
            model="m", input="How is it in Oslo?", tools=[WEATHER], functions={"weather": weather}
        ) as rollout,
    ):
        async for event in rollout:
            match event:
                case ResponseCreated(response):
                    print(f"server   {response.id[:12]}… begins")
                case FunctionCallArgumentsDone():
                    print(f"server   calls weather with {event.arguments}")
                case ResponseDone():
                    print("server   suspends it: response.done")
                case OutputTextDelta():
                    print(f"server   says {event.delta!r}")
    assert rollout.response is not None
    print(f"server   {rollout.response.id[:12]}… is over: one response all along")


if __name__ == "__main__":
    trio.run(main)
