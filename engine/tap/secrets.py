"""What a trace must not hold: keys, in whatever a request carries them.

Headers are never written at all. What is left are targets, and frames that repeat a key: as the authorization of a
tool's server, or because it was echoed.
"""

import re
from typing import Final
from urllib.parse import parse_qsl, urlencode

from engine.tap.http import Head

HIDDEN: Final = "***"
MIN_SECRET_CHARACTERS: Final = 16
"""Shorter ones guard nothing (`sk-test`), and would be found in innocent words."""
KEY_HEADERS: Final = (
    "authorization",
    "proxy-authorization",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
    "cookie",
)
PLAIN_QUERY_NAMES: Final = frozenset(
    {"after", "api-version", "before", "dialect", "include", "include[]", "limit", "model", "order"}
    | {"starting_after", "stream"}
)
"""Values of all others are hidden: who knows what a gateway calls its key."""

_PROTOCOL_KEY: Final = "openai-insecure-api-key."
"""How browsers send it: as a WebSocket subprotocol."""
_ORIGIN = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_KEY = re.compile(r"\b(?:sk|sess|ek)-[A-Za-z0-9_-]{12,}")
_MEMBER = re.compile(rb'("(?:proxy-)?authorization"\s*:\s*)"(?:[^"\\]|\\.)*"', re.IGNORECASE)
_MEMBER_MARK: Final = b"uthorization"
"""Looked for first, since a frame is searched in a tenth of the time."""


class Secrets:
    """The keys of one connection."""

    def __init__(self) -> None:
        self._known: list[bytes] = []

    def learn(self, head: Head) -> None:
        """Take the keys out of a request's head."""
        words = [word for name in KEY_HEADERS for word in re.split(r"[\s;,=]+", head.headers.get(name, ""))]
        offers = head.headers.get("sec-websocket-protocol", "").split(",")
        words += [offer.strip().removeprefix(_PROTOCOL_KEY) for offer in offers if _PROTOCOL_KEY in offer]
        for word in words:
            secret = word.encode("latin-1")
            if len(secret) >= MIN_SECRET_CHARACTERS and secret not in self._known:
                self._known.append(secret)

    def target(self, target: str) -> tuple[str, str]:
        """Path and query of a request's target, as they may be written."""
        path, _, query = _ORIGIN.sub("", target).partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        shown = [(name, value if name.lower() in PLAIN_QUERY_NAMES else HIDDEN) for name, value in pairs]
        return self.text(path), self.text(urlencode(shown, safe="*[]"))

    def text(self, text: str) -> str:
        """A part of an address without the keys, known or by their looks."""
        return _KEY.sub(HIDDEN, self.clean(text.encode()).decode())

    def clean(self, payload: bytes) -> bytes:
        """A frame without the keys; nearly always the same object."""
        for secret in self._known:
            if secret in payload:
                payload = payload.replace(secret, HIDDEN.encode())
        if _MEMBER_MARK in payload:
            payload = _MEMBER.sub(rb'\1"***"', payload)
        return payload
