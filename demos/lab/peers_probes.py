"""What a server does and does not do, found out by asking: each fact is what came back, none is typed.

A fact has a name, a verdict (`yes`, `no`, or `unknown` where nothing can be seen from outside), and what was seen.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import orjson

from demos.lab.peers_client import DONE, PATH, Answer, PeerError, SseClient, Way, client
from demos.lab.peers_policy import asked
from demos.lab.peers_servers import CALLS, FLOOD

Verdict = Literal["yes", "no", "unknown"]
LONG_TEXT: Final = "one two three four " * 400
UNKNOWN_ID: Final = "resp_00000000000000000000000000000000"
UNKNOWN_CALL: Final = {"type": "function_call_output", "call_id": "call_nobody_made", "output": "42"}
TOOL: Final = {"type": "function", "name": "look", "parameters": {"type": "object"}}
BAD_REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "an input that is a number": {"input": 17},
    "a temperature that is a word": {"temperature": "hot"},
    "an item of an unknown type": {"input": [{"type": "nothing_known"}]},
    "a message of an unknown role": {"input": [{"role": "nobody", "content": "hello"}]},
    "a tool without a name": {"tools": [{"type": "function"}]},
    "an output of a call that was not made": {"input": [UNKNOWN_CALL]},
}
"""What is wrong, and the members that make it so."""
_COMPLETED: Final = "response.completed"
_ARGUMENTS: Final = "response.function_call_arguments.delta"


@attrs.frozen
class Fact:
    """One thing that a server does or does not do."""

    name: str
    verdict: Verdict
    seen: str


@attrs.frozen
class Said:
    """What came of a request, whatever it was."""

    outcome: Literal["answered", "refused", "failed"]
    """Failed: a fault of the server's, or no answer that can be read."""
    detail: str
    events: Sequence[Mapping[str, Any]] = ()
    answer: Answer | None = None

    @property
    def response(self) -> Mapping[str, Any]:
        """The resource of the last event."""
        found = self.events[-1].get("response") if self.events else None
        return found if isinstance(found, Mapping) else {}

    @property
    def input_tokens(self) -> int | None:
        """As the server counts them."""
        usage = self.response.get("usage")
        counted = usage.get("input_tokens") if isinstance(usage, Mapping) else None
        return counted if isinstance(counted, int) else None


@attrs.frozen
class Asker:
    """Asks one server in one way; each request on a connection of its own, as refusals may close it."""

    way: Way
    port: int
    key: str | None

    def ask(self, body: Mapping[str, Any]) -> Said:
        """One create. Never raises for what the server does."""
        try:
            peer = client(self.way, self.port, self.key)
        except PeerError as error:
            return Said("failed", str(error))
        try:
            return _said(peer.ask({"model": FLOOD, **body}))
        except PeerError as error:
            return Said("failed", str(error))
        finally:
            peer.close()

    def get(self, path: str) -> int | str:
        """The status of another route, or what went wrong."""
        peer = SseClient(self.port, self.key)
        try:
            return peer.get(path).status
        except PeerError as error:
            return str(error)
        finally:
            peer.close()


def _said(answer: Answer) -> Said:
    events = answer.read()
    last = events[-1] if events else _object(answer.body)
    if last.get("type") == _COMPLETED:
        return Said("answered", "answered", events, answer)
    response = last.get("response")
    error = last.get("error") or (response.get("error") if isinstance(response, Mapping) else None)
    told = error if isinstance(error, Mapping) else {}
    status = last.get("status") if answer.status in (101, 200) else answer.status
    code = told.get("code") or told.get("type") or last.get("type") or "no reason"
    server_fault = told.get("type") == "server_error" or (isinstance(status, int) and status >= 500)
    shown = f"{status} {code}" if isinstance(status, int) else str(code)
    return Said("failed" if server_fault or not told else "refused", shown[:80], events, answer)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


# --- the facts -----------------------------------------------------------------------------------------------------


def facts(asker: Asker) -> list[Fact]:
    """All of them; a server that does not answer at all has one."""
    plain = asker.ask(_plain())
    if plain.outcome != "answered":
        return [Fact("answers", "no", plain.detail)]
    made = [Fact("answers", "yes", "a plain request was answered")]
    for probe in _PROBES[asker.way]:
        made += probe(asker, plain)
    return made


def _plain() -> dict[str, Any]:
    return {"input": [{"role": "user", "content": asked(20)}], "store": True}


def _usage(asker: Asker, plain: Said) -> Iterator[Fact]:
    usage = plain.response.get("usage")
    counts = {key: usage.get(key) for key in ("input_tokens", "output_tokens")} if usage else {}
    shown = ", ".join(f"{key} {value}" for key, value in counts.items()) or "no usage in the last event"
    yield Fact("says what was used", "yes" if any(counts.values()) else "no", shown)
    longer = asker.ask({"input": [{"role": "user", "content": LONG_TEXT + asked(20)}]})
    short, long = plain.input_tokens, longer.input_tokens
    grows = bool(short and long and long > short)
    yield Fact(
        "counts the input's tokens",
        "yes" if grows else "no",
        f"{short} for a short input, {long} for one of {len(LONG_TEXT):,} characters",
    )


def _numbers(_asker: Asker, plain: Said) -> Iterator[Fact]:
    numbers = [event.get("sequence_number") for event in plain.events]
    if not any(isinstance(number, int) for number in numbers):
        yield Fact("numbers its events", "no", "no sequence_number")
        return
    whole = numbers == [*range(len(numbers))]
    yield Fact(
        "numbers its events", "yes" if whole else "no", "from 0 without a gap" if whole else "with gaps"
    )


def _framing(_asker: Asker, plain: Said) -> Iterator[Fact]:
    assert plain.answer is not None, "it was answered"
    names = [name for name, data in plain.answer.events if data != DONE]
    named = sum(map(bool, names))
    verdict: Verdict = "yes" if named == len(names) else "no"
    yield Fact("names its events", verdict, f"{named} of {len(names)} with an event: line")


def _unknown_previous(asker: Asker, _plain_said: Said) -> Iterator[Fact]:
    said = asker.ask({**_plain(), "previous_response_id": UNKNOWN_ID})
    refused = said.outcome == "refused"
    seen = said.detail if said.outcome != "answered" else "answered as if nothing had been named"
    yield Fact("refuses an unknown previous_response_id", "yes" if refused else "no", seen)


def _continues(asker: Asker, _plain_said: Said) -> Iterator[Fact]:
    """On one connection: what was said first must count among the input of what follows."""
    name = "continues from previous_response_id"
    first: dict[str, Any] = {
        "model": FLOOD,
        "store": True,
        "input": [{"role": "user", "content": LONG_TEXT + asked(20)}],
    }
    try:
        peer = client(asker.way, asker.port, asker.key)
        try:
            begun = _said(peer.ask(first))
            follow = {"model": FLOOD, **_plain(), "previous_response_id": begun.response.get("id")}
            next_ = _said(peer.ask(follow))
        finally:
            peer.close()
    except PeerError as error:
        yield Fact(name, "no", str(error))
        return
    if next_.outcome != "answered":
        yield Fact(name, "no", next_.detail)
    elif not next_.input_tokens or not begun.input_tokens:
        yield Fact(
            name, "unknown", "answered; whether it knew what was said before does not show in its usage"
        )
    else:
        remembers = next_.input_tokens > begun.input_tokens
        yield Fact(
            name,
            "yes" if remembers else "no",
            f"input {begun.input_tokens} tokens, then {next_.input_tokens} with a short message",
        )


def _stored(asker: Asker, plain: Said) -> Iterator[Fact]:
    status = asker.get(f"{PATH}/{plain.response.get('id')}")
    yield Fact("gives a stored response again", "yes" if status == 200 else "no", f"GET: {status}")


def _refusals(asker: Asker, _plain_said: Said) -> Iterator[Fact]:
    """One that fails in the attempt has not refused."""
    found = {name: asker.ask({**_plain(), **members}) for name, members in BAD_REQUESTS.items()}
    refused = [name for name, said in found.items() if said.outcome == "refused"]
    others = "; ".join(f"{name}: {said.detail}" for name, said in found.items() if name not in refused)
    verdict: Verdict = "yes" if len(refused) == len(found) else "no"
    yield Fact(
        "refuses requests that are wrong",
        verdict,
        f"{len(refused)} of {len(found)} refused" + (f"; {others}" if others else ""),
    )


def _calls(asker: Asker, _plain_said: Said) -> Iterator[Fact]:
    said = asker.ask({**_plain(), "model": CALLS, "tools": [TOOL]})
    output = said.response.get("output")
    made = (
        [item for item in output if item.get("type") == "function_call"] if isinstance(output, list) else []
    )
    pieces = sum(event.get("type") == _ARGUMENTS for event in said.events)
    seen = f"{made[0].get('name')}, arguments in {pieces} events" if made else said.detail
    yield Fact("calls tools", "yes" if made else "no", seen)


def _kept(asker: Asker, _plain_said: Said) -> Iterator[Fact]:
    """Two requests by one client."""
    peer = client(asker.way, asker.port, asker.key)
    try:
        for _ in range(2):
            peer.ask({"model": FLOOD, **_plain()})
        seen, kept = f"{peer.connections} connections for two requests", peer.connections == 1
    except PeerError as error:
        seen, kept = str(error), False
    finally:
        peer.close()
    yield Fact("keeps the connection", "yes" if kept else "no", seen)


Probe = Callable[[Asker, Said], Iterator[Fact]]
_BOTH: Final[tuple[Probe, ...]] = (_usage, _numbers, _unknown_previous, _continues, _refusals, _calls, _kept)
_PROBES: Final[Mapping[Way, tuple[Probe, ...]]] = {
    "sse": (*_BOTH, _framing, _stored),
    "websocket": _BOTH,
}
