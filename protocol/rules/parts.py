"""What the checker remembers of an item: its parts, and the call that it is. Data only."""

from typing import Any

from protocol.rules.tables import ItemKind


class Part:
    """A piece of text that comes in deltas: a content part, a summary part, or a call's arguments."""

    __slots__ = (
        "annotations",
        "closed",
        "implicit",
        "index",
        "index_key",
        "item_id",
        "kind",
        "output_index",
        "pieces",
        "tail",
        "takes",
        "text",
    )

    def __init__(self, item: "Item", kind: str, takes: str | None, index_key: str, index: object) -> None:
        self.item_id = item.id
        self.output_index = item.index
        self.kind = kind
        self.takes = takes
        """The delta that may still come: None once the text is done."""
        self.index_key = index_key
        self.index = index
        self.pieces: list[str] = []
        self.text: str | None = None
        self.annotations: list[Any] = []
        self.closed = False
        self.implicit = False
        self.tail = ""


class Item:
    """One output item from its announcement on."""

    __slots__ = ("arguments", "done", "first", "id", "index", "kind", "parts", "spec", "summary")

    def __init__(self, item_id: object, index: object, first: dict[str, Any], spec: ItemKind | None) -> None:
        self.id = item_id
        self.index = index
        self.first = first
        kind = first.get("type")
        self.kind = kind if isinstance(kind, str) else ""
        self.spec = spec
        self.parts: list[Part] = []
        self.summary: list[Part] = []
        self.arguments: Part | None = None
        self.done: dict[str, Any] | None = None


class Call:
    """A tool call of a response."""

    __slots__ = ("answered", "client", "index", "kind", "ready")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.client = False
        self.ready = False
        self.answered = False
