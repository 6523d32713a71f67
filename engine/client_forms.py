"""What differs between the four forms for a client, as rows: how it connects, when outputs may go, and as what.

The rollout (`engine.client`) knows no form. In each it reads events, runs tools and sends outputs; the row says

- what a pause is: the event after which outputs may go. `append` has `response.done`; `inject` needs none; in `create` and
  `http` a response *completes* with its calls unanswered;
- whether all outputs of a pause go together: in `create` and `http` they do, since they start the next response;
- what brings them: an append, an inject, a create with `previous_response_id`, or a `POST` of the whole history.

Over HTTP the history is sent each time and nothing is stored, as Codex and most frameworks do it: a server without a
connection's state has to be told all. With `store=True` a rollout goes on by `previous_response_id` instead.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import attrs
import trio

from engine.client_http import open_http
from engine.client_wire import Dial, Headers, Wire, open_websocket
from engine.config import Limits
from protocol.events import (
    ClientEvent,
    ResponseAppend,
    ResponseCompleted,
    ResponseCreate,
    ResponseDone,
    ResponseInject,
)
from protocol.items import Item, Message, Output

Form = Literal["append", "inject", "create", "http"]
Open = Callable[
    [str, Headers, Limits, trio.abc.Stream | None, Dial | None], AbstractAsyncContextManager[Wire]
]


@attrs.define
class Progress:
    """How far a rollout is."""

    create: ResponseCreate
    """The first one; each other one repeats its members."""
    response_id: str = ""
    """Of the newest response."""
    items: list[Item] = attrs.Factory(list)
    """The conversation: the first create's input, what came out, and the outputs of tools."""

    @classmethod
    def of(cls, create: ResponseCreate) -> "Progress":
        """At the beginning."""
        given = create.input or ()
        return cls(create, items=[Message("user", given)] if isinstance(given, str) else list(given))


@attrs.frozen(kw_only=True)
class FormRow:
    """One form."""

    name: Form
    opens: Open
    schemes: Mapping[bool, str]
    """Of its URLs, by whether they are for TLS."""
    headers: Headers = ()
    opts_into_append: bool = False
    members: Mapping[str, Any] = attrs.field(factory=dict)
    """What a create says, unless the user says something else."""
    pause: tuple[type, ...] = ()
    """Outputs may go only after such an event; none: at any time."""
    all_at_once: bool = False
    """All outputs of a pause go together."""
    go_on: Callable[[Progress, tuple[Output, ...]], ClientEvent]
    """What brings outputs. They are among the progress's items already."""

    def url(self, url: str) -> str:
        """A server's URL as this form writes it, whether it is given as `ws` or `http`."""
        scheme, rest = url.partition("://")[::2]
        known = {"ws": False, "http": False, "wss": True, "https": True}
        secure = known.get(scheme.lower())
        if secure is None or not urlsplit(url).hostname:
            raise ValueError(f"a URL is ws://host/path or http://host/path (or wss, https), not {url!r}")
        return f"{self.schemes[secure]}://{rest}"


def _append(_progress: Progress, outputs: tuple[Output, ...]) -> ClientEvent:
    return ResponseAppend(input=outputs)


def _inject(progress: Progress, outputs: tuple[Output, ...]) -> ClientEvent:
    return ResponseInject(response_id=progress.response_id, input=outputs)


def _create(progress: Progress, outputs: tuple[Output, ...]) -> ClientEvent:
    """Only what is new: the connection remembers the rest."""
    return attrs.evolve(progress.create, input=outputs, previous_response_id=progress.response_id)


def _post(progress: Progress, outputs: tuple[Output, ...]) -> ClientEvent:
    """All there is, unless the server was asked to store it."""
    if progress.create.store:
        return _create(progress, outputs)
    return attrs.evolve(progress.create, input=tuple(progress.items))


_WEBSOCKET: Final = {False: "ws", True: "wss"}
FORMS: Final[Mapping[str, FormRow]] = {
    row.name: row
    for row in (
        FormRow(
            name="append",
            opens=open_websocket,
            schemes=_WEBSOCKET,
            headers=(("OpenAI-Beta", "responses_websockets=2026-02-04"),),
            opts_into_append=True,
            pause=(ResponseDone,),
            go_on=_append,
        ),
        FormRow(
            name="inject",
            opens=open_websocket,
            schemes=_WEBSOCKET,
            headers=(("OpenAI-Beta", "responses_multi_agent=v1"),),
            members={"multi_agent": {"enabled": True}},
            go_on=_inject,
        ),
        FormRow(
            name="create",
            opens=open_websocket,
            schemes=_WEBSOCKET,
            pause=(ResponseCompleted,),
            all_at_once=True,
            go_on=_create,
        ),
        FormRow(
            name="http",
            opens=open_http,
            schemes={False: "http", True: "https"},
            members={"stream": True, "store": False, "include": ("reasoning.encrypted_content",)},
            pause=(ResponseCompleted,),
            all_at_once=True,
            go_on=_post,
        ),
    )
}
