"""What a response leaves behind for one that continues it: exactly the four kinds of state that can be used again.

1. the response as it ended (`resource`)
2. its items, and those before it (`context`, `calls`)
3. the tools, read and checked (`tools`, `added_tools`)
4. what sampling made: rendered tokens (`context`), the classifier's place (`streams`), the model's own state (`warm`)

Everything but `warm` is a value and may be continued by many; `warm` is one model's state and goes to whoever takes it
first. Whoever drops a snapshot closes what is left in it.
"""

from array import array
from collections.abc import Mapping
from typing import Any

import attrs

from engine.context import Context
from engine.samplers.base import Sampling
from engine.stages import CallLedger, Streams, ToolTable
from protocol.events import Response
from protocol.items import Item

Tools = tuple[Mapping[str, Any], ...]
Randomness = tuple[float | None, float | None]
"""`temperature` and `top_p`; None: as the sampler likes."""


@attrs.define(eq=False)
class Warm:
    """A sampling that waits for the next turn, and what it must still be given."""

    sampling: Sampling
    model: str
    tool_choice: str | Mapping[str, Any]
    held_tokens: int
    feed: "array[int]"
    items: tuple[Item, ...]
    text_format: Mapping[str, Any] | None = None
    randomness: Randomness = (None, None)


@attrs.define(kw_only=True, eq=False)
class Snapshot:
    """A response that may be continued (reference 2.5)."""

    response_id: str
    context: Context
    calls: CallLedger
    streams: Streams
    held_tokens: int
    """The context in tokens, by the model's own account."""
    tools: ToolTable = attrs.field(factory=ToolTable)
    added_tools: tuple[Tools, ...] = ()
    """Those that came by items of the context, in order."""
    resource: Response | None = None
    read_by: str | None = None
    """The model that has read its first `read_tokens` and may know them still, without a `warm`: by its prefix cache."""
    read_tokens: int = 0
    warm: Warm | None = None

    def take_warm(
        self,
        model: str,
        tool_choice: str | Mapping[str, Any],
        text_format: Mapping[str, Any] | None = None,
        randomness: Randomness = (None, None),
    ) -> Warm | None:
        """The model's state, if it is still here and fits; it is no longer here then."""
        warm, wanted = self.warm, (model, tool_choice, text_format, randomness)
        if warm is None or (warm.model, warm.tool_choice, warm.text_format, warm.randomness) != wanted:
            return None
        self.warm = None
        return warm
