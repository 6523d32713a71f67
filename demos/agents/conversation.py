"""A conversation held without a server: a policy and its tools, turn by turn.

This is what the engine does with a policy, less everything that makes it an engine.
It is the quickest way to try a policy, and says by its few lines what a rollout is.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from engine.samplers.policy import Policy, Say, Tools, Use
from protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)

Tool = Callable[..., Awaitable[str]]


@attrs.define
class Conversation:
    """What was said, thought, called and answered so far; `items` is what a policy is shown."""

    items: list[Item] = attrs.Factory(list)

    @property
    def calls(self) -> list[FunctionCall]:
        """All calls, in order."""
        return [item for item in self.items if isinstance(item, FunctionCall)]

    @property
    def final_text(self) -> str:
        """The last thing the agent said, empty if it said nothing."""
        said = [i for i in self.items if isinstance(i, Message) and i.role == "assistant"]
        return "".join(p.text for p in said[-1].content if isinstance(p, OutputText)) if said else ""

    async def run(self, policy: Policy, prompt: str, tools: Mapping[str, Tool], schemas: Tools) -> None:
        """Let the policy answer a prompt, calling tools until it makes a segment without a call.

        Calls of one segment run at the same time; their outputs are added in the order of the calls.
        A checkpoint. Raises `KeyError` for a call of a tool that is not in `tools`.
        """
        self.items.append(Message("user", prompt))
        while calls := self._add_segment(policy, schemas):
            outputs = dict.fromkeys(call.call_id for call in calls)

            async def answer(call: FunctionCall, outputs: dict[str, Any] = outputs) -> None:
                outputs[call.call_id] = await tools[call.name](**json.loads(call.arguments))

            async with trio.open_nursery() as nursery:
                for call in calls:
                    nursery.start_soon(answer, call)
            self.items.extend(FunctionCallOutput(call_id, str(text)) for call_id, text in outputs.items())

    def _add_segment(self, policy: Policy, schemas: Tools) -> list[FunctionCall]:
        calls = []
        for move in policy(tuple(self.items), schemas):
            if isinstance(move, Use):
                call = FunctionCall(f"call_{len(self.items)}", move.name, json.dumps(move.arguments))
                calls.append(call)
                self.items.append(call)
            elif isinstance(move, Say):
                self.items.append(Message("assistant", (OutputText(move.text),)))
            else:
                self.items.append(Reasoning(content=(ReasoningText(move.text),)))
        return calls
