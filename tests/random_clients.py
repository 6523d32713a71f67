"""Clients that do what they like, mostly what they should: drawn move by move from a source of randomness.

One class for the forms that suspend, one for the create form, one for HTTP. Each plays a few dozen moves with pauses of
nothing to minutes between them, and then hangs up, or notices that the connection is over.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from tests.http_peer import HttpPeer
from tests.scenarios import CUSTOM, FUNCTION, Talk

PAUSES: Final = (0.0, 0.0, 0.001, 0.1, 1.0, 1.0, 40.0, 700.0)
NOBODY: Final = {"type": "function_call_output", "call_id": "call_nobody", "output": "?"}
HURRY: Final = {"type": "message", "role": "user", "content": "hurry"}
UNHEARD_OF: Final = "resp_" + "0" * 32


class RandomTalker(ABC):
    """What all over a WebSocket have in common."""

    def __init__(self, talk: Talk, source: random.Random) -> None:
        self.talk = talk
        self.source = source
        self.lanes: list[str | None] = source.choice(([None], [None], ["a", "b"], [None, "a", "b"]))

    async def run(self) -> None:
        """Play; `TransportClosed` when the connection is over."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read)
            for _ in range(self.source.randint(5, 25)):
                self.move()
                await trio.sleep(self.source.choice(PAUSES))
            nursery.cancel_scope.cancel()

    async def read(self) -> None:
        while True:
            await self.talk.next()

    @abstractmethod
    def move(self) -> None:
        """One thing to do."""

    def lane_members(self) -> dict[str, Any]:
        lane = self.source.choice(self.lanes)
        return {} if lane is None else {"stream_id": lane}

    def some_response(self) -> str:
        """Mostly one of the last."""
        if not self.talk.response_ids or self.source.random() < 0.05:
            return UNHEARD_OF
        return self.source.choice(self.talk.response_ids[-4:])


class SuspendingClient(RandomTalker):
    """Speaks append or inject."""

    def __init__(self, talk: Talk, source: random.Random) -> None:
        super().__init__(talk, source)
        self.answered: set[int] = set()
        self.created = 0

    def move(self) -> None:
        """Mostly outputs, now and then a new rollout, sometimes nonsense."""
        if self.created == 0 or self.source.random() < 0.12:
            self.create()
        else:
            self.source.choice(
                (self.answer, self.answer, self.answer, self.answer, self.answer_all, self.misbehave)
            )()

    def create(self) -> None:
        self.created += 1
        lane = self.source.choice(self.lanes)
        members: dict[str, Any] = {} if lane is None else {"stream_id": lane}
        if self.talk.response_ids and self.source.random() < 0.3:
            members["previous_response_id"] = self.source.choice(self.talk.response_ids)
        members |= self.source.choice(
            ({}, {}, {"max_output_tokens": 9}, {"max_tool_calls": 1}, {"generate": False})
        )
        self.talk.create(self.source.choice(("go", "x" * 5000)), **members)

    def lane_members(self) -> dict[str, Any]:
        members = super().lane_members()
        return {} if self.talk.form == "inject" else members

    def send(self, places: list[int]) -> None:
        """Outputs for calls, mostly to the response of the last of them, sometimes to another."""
        if not places:
            return
        response_id, lane = self.talk.homes[places[-1]]
        members = {} if lane is None or self.talk.form == "inject" else {"stream_id": lane}
        if self.source.random() < 0.1:
            response_id, members = self.source.choice(self.talk.response_ids), self.lane_members()
        self.talk.answer(*places, response_id=response_id, **members)

    def answer(self) -> None:
        """One of the last open calls, mostly once."""
        still = [place for place in range(len(self.talk.calls)) if place not in self.answered]
        if still:
            place = self.source.choice(still[-2:])
            self.answered.update({place} if self.source.random() < 0.8 else ())
            self.send([place])

    def answer_all(self) -> None:
        """All the last calls at once, in any order."""
        places = list(range(len(self.talk.calls)))[-self.source.randint(1, 3) :]
        self.source.shuffle(places)
        self.send(places)

    def misbehave(self) -> None:
        """What a client should not do."""
        talk = self.talk
        response_id = talk.response_ids[-1] if talk.response_ids else "resp_none"
        self.source.choice(
            (
                lambda: talk.put(NOBODY, response_id=response_id),
                lambda: talk.put(
                    *map(talk.output, range(len(talk.calls))[-1:]), NOBODY, response_id=response_id
                ),
                lambda: talk.put(HURRY, response_id=response_id, **self.lane_members()),
                lambda: talk.raw.send("{"),
                lambda: talk.raw.send({"type": "response.cancel"}),
                lambda: talk.raw.send({"type": "response.append", "input": []}),
                lambda: talk.raw.send(
                    {"type": "response.inject", "response_id": response_id, "input": [NOBODY]}
                ),
                lambda: talk.raw.send({"type": "response.create", "input": 7}),
            )
        )()


class CreatingClient(RandomTalker):
    """Speaks the create form: chains, forks, steers, warms up, and forgets to answer calls."""

    def __init__(self, talk: Talk, source: random.Random) -> None:
        super().__init__(talk, source)
        self.store = source.choice((False, False, True))

    def move(self) -> None:
        """Mostly the next turn of some chain."""
        moves: tuple[Callable[[], None], ...] = (self.begin, self.steer, self.misbehave)
        if not self.talk.response_ids or self.source.random() < 0.4:
            self.source.choice(moves if self.talk.response_ids else (self.begin,))()
        else:
            self.go_on()

    def create(self, text: Any, **members: Any) -> None:
        extra = self.source.choice(
            ({}, {}, {}, {"max_output_tokens": 9}, {"generate": False}, {"max_tool_calls": 1})
        )
        self.talk.create(text, store=self.store, **self.lane_members(), **extra, **members)

    def begin(self) -> None:
        """A chain of its own."""
        self.create(self.source.choice(("go", "x" * 5000)))

    def go_on(self) -> None:
        """The next turn: the outputs of the calls that are open, most of the time, or a word."""
        parent = self.some_response()
        places = [place for place, (home, _) in enumerate(self.talk.homes) if home == parent]
        if places and self.source.random() < 0.2:
            places.pop()
        self.source.shuffle(places)
        outputs = [self.talk.output(place) for place in places]
        words = [HURRY] if not outputs or self.source.random() < 0.2 else []
        self.create([*outputs, *words], previous_response_id=parent)

    def steer(self) -> None:
        """A word to a response that is running, or was."""
        steered = self.talk.response_ids[-1] if self.source.random() < 0.8 else self.some_response()
        self.talk.raw.send({"type": "response.steer", "previous_response_id": steered, "input": "hurry"})

    def misbehave(self) -> None:
        """What a client should not do."""
        send, parent = self.talk.raw.send, self.some_response()
        self.source.choice(
            (
                lambda: send("{"),
                lambda: send({"type": "response.append", "input": [NOBODY]}),
                lambda: send({"type": "response.create", "model": "m", "input": 7}),
                lambda: send({"type": "response.create", "model": "m", "input": [NOBODY]}),
                lambda: send(
                    {
                        "type": "response.create",
                        "model": "m",
                        "input": [NOBODY],
                        "previous_response_id": parent,
                        **self.lane_members(),
                    }
                ),
                lambda: self.talk.create("hi", previous_response_id=UNHEARD_OF, store=False),
                lambda: self.talk.create("hi", stream_id="no lane!"),
            )
        )()


class HttpClient:
    """Speaks HTTP: one request after the other on a connection, streamed or not, now and then hanging up in the middle."""

    def __init__(self, peer: HttpPeer, source: random.Random) -> None:
        self.peer = peer
        self.source = source
        self.history: list[Any] = []
        self.responses: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Play; `trio.BrokenResourceError` and the like when the connection is over."""
        for _ in range(self.source.randint(2, 8)):
            patience = self.source.choice((1000.0, 1000.0, 1000.0, 0.5))
            with trio.move_on_after(patience) as gave_up:
                await self.source.choice((self.create, self.create, self.create, self.look))()
            if gave_up.cancelled_caught:
                return  # in mid-stream
            await trio.sleep(self.source.choice(PAUSES))

    async def create(self) -> None:
        """A turn: on top of a stored response, or with the whole history."""
        streamed = self.source.random() < 0.7
        body: dict[str, Any] = {"model": "m", "tools": [FUNCTION, CUSTOM], "stream": streamed}
        if self.source.random() < 0.1:
            body["input"] = self.source.choice((7, [NOBODY]))
        elif self.responses and self.source.random() < 0.4:
            parent = self.source.choice(self.responses)
            body |= {"input": [*outputs_for(parent), HURRY], "previous_response_id": parent["id"]}
        else:
            open_calls = outputs_for(self.responses[-1]) if self.responses else []
            body |= {"input": [*self.history, *open_calls, HURRY], "store": False}
        answer = await self.peer.ask("POST", "/v1/responses", body)
        if answer.status != 200:
            return
        resource = last_resource(answer.events) if streamed else answer.json
        if resource["status"] == "completed":
            self.responses.append(resource)
            if "previous_response_id" not in body:
                self.history = [*body["input"], *resource["output"]]

    async def look(self) -> None:
        """At what was made, or what never was."""
        response_id = self.responses[-1]["id"] if self.responses else UNHEARD_OF
        await self.peer.ask(
            *self.source.choice(
                (
                    ("GET", f"/v1/responses/{response_id}"),
                    ("GET", f"/v1/responses/{response_id}/input_items"),
                    ("POST", f"/v1/responses/{response_id}/cancel"),
                    ("DELETE", f"/v1/responses/{UNHEARD_OF}"),
                    ("GET", "/nowhere"),
                )
            )
        )


def last_resource(events: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """As the stream showed it last; to find that its end is missing is not a client's business here, but the checker's."""
    return next(
        data["response"] for _, data in reversed(events) if isinstance(data, dict) and "response" in data
    )


def outputs_for(resource: dict[str, Any]) -> list[dict[str, Any]]:
    """An output for each call of a response."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
        for item in resource["output"]
        if item["type"] in {"function_call", "custom_tool_call"}
    ]
