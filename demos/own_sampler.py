"""Bring your own sampler: twenty lines stand between a model and a rollout. This one counts the words it reads."""

import trio

from engine.engine import Engine
from engine.local import local_client
from engine.samplers.base import Appended, CallEnd, CallInput, CallStart, End, Prefilled, Prompt, Steps, Text
from protocol.items import OUTPUTS, text_of

FETCH = {"type": "function", "name": "fetch", "parameters": {"type": "object"}}


class WordCounter:
    """The model."""

    def open(self, prompt: Prompt) -> "Counting":
        """A rollout begins."""
        return Counting([tool["name"] for tool in prompt.tools])


class Counting:
    """One rollout's warm state: what it has read stays here while the response is suspended."""

    def __init__(self, tools: list[str]) -> None:
        self.tools, self.words = tools, 0

    async def sample(self, appended: Appended) -> Steps:
        """One segment; `appended` is only what is new. A step is a tuple of parts, the last part of all is `End`."""
        await trio.lowlevel.checkpoint()
        yield (Prefilled(computed=len(appended.tokens)),)
        outputs = [item.output for item in appended.items if isinstance(item, OUTPUTS)]
        self.words += sum(len(text_of(output).split()) for output in outputs)
        if self.tools:
            yield (CallStart(0, self.tools.pop()), CallInput(0, "{}"), CallEnd(0), End())
        else:
            yield (Text(f"I have read {self.words} words."), End())

    async def aclose(self) -> None:
        """The rollout is over."""
        await trio.lowlevel.checkpoint()


async def fetch() -> str:
    """The client's tool."""
    return "to be or not to be"


async def main() -> None:
    """Use it."""
    async with (
        local_client(Engine.make(WordCounter())) as client,
        client.rollout(model="m", input="count", tools=[FETCH], functions={"fetch": fetch}) as rollout,
    ):
        await rollout.wait_ended()
        print(rollout.text)


if __name__ == "__main__":
    trio.run(main)
