"""What the classifier reads of an item."""

from protocol.items import (
    OUTPUTS,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    ToolSearchCall,
    text_of,
)


def text_of_input(item: Item) -> str:
    """Of one that came in: messages and outputs; of others nothing."""
    if isinstance(item, OUTPUTS):
        return text_of(item.output)
    return text_of(item.content) if isinstance(item, Message) else ""


def text_of_output(item: Item) -> str:
    """Of one that the model wrote: its words, its reasoning, and what it calls tools with."""
    if isinstance(item, Message):
        return text_of(item.content)
    if isinstance(item, Reasoning):
        return text_of(item.content or ())
    if isinstance(item, FunctionCall):
        return item.arguments
    if isinstance(item, CustomToolCall | ToolSearchCall):
        return item.input
    return ""
