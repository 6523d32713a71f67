"""Opaque tokens that a client keeps for us: readable by nobody's business but ours, usable by one owner only.

A token is base64 of a version, an HMAC-SHA256 and compressed JSON. It is authenticated and not encrypted: what is in it
came from its owner, who may know it, but may not change it, and nobody else may use it.
The HMAC's key is made of the server's secret and the owner, so a token of another key is as invalid as a forged one.
"""

import hashlib
import hmac
import os
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from pathlib import Path
from typing import Any, Final

import orjson

_VERSION: Final = b"\x01"
_MAC_BYTES: Final = 32
_LEVEL: Final = 6
"""Of compression; fixed, so that the same content gives the same token."""


_OURS_ALONE: Final = 0o600


class SealError(ValueError):
    """The token is not one that this server gave to this owner."""


def secret_beside(file: Path) -> bytes:
    """The secret of the server that keeps its responses in `file`, from the file beside it; made when it is first needed.

    With it tokens outlive a restart, as the responses do. `OSError`: it cannot be read or made. `ValueError`: it is none.
    """
    place = file.with_name(f"{file.name}.secret")
    if not place.exists():
        _write_whole(place, secrets.token_bytes(_MAC_BYTES))
    secret = place.read_bytes()
    if len(secret) != _MAC_BYTES:
        raise ValueError(
            f"{place}: {len(secret)} bytes are no secret of this server, which has {_MAC_BYTES}; restore the file, "
            "or remove it: then no compaction item that was made before can be read"
        )
    return secret


def _write_whole(place: Path, secret: bytes) -> None:
    """All of it or nothing, for its owner's eyes only; whoever comes second takes what the first one wrote."""
    draft = place.with_name(f"{place.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OURS_ALONE), "wb") as opened:
        opened.write(secret)
    try:
        place.hardlink_to(draft)
    except FileExistsError:
        pass
    except OSError:  # some file systems have no links
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


class Seals:
    """Makes and opens tokens."""

    def __init__(self, secret: bytes | None = None) -> None:
        """`secret`: at least 16 bytes, kept by a server whose tokens should survive a restart; None: a random one."""
        if secret is not None and len(secret) < _MAC_BYTES // 2:
            raise ValueError(
                f"a secret of {len(secret)} bytes can be guessed; use at least {_MAC_BYTES // 2}"
            )
        self._secret = secret or secrets.token_bytes(_MAC_BYTES)

    def seal(self, content: Any, owner: str) -> str:
        """A token that holds `content`, which is anything that JSON can say. The same content gives the same token."""
        body = zlib.compress(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), _LEVEL)
        return urlsafe_b64encode(_VERSION + self._mac(body, owner) + body).decode()

    def open(self, token: str, owner: str) -> Any:
        """What was sealed. `SealError`: forged, changed, of another owner or of another server, which all look the same."""
        try:
            raw = urlsafe_b64decode(token.encode("ascii"))
        except (Base64Error, ValueError):
            raise SealError("not a token") from None
        head, mac, body = raw[:1], raw[1 : 1 + _MAC_BYTES], raw[1 + _MAC_BYTES :]
        # nothing is unpacked before it is known to be our own
        if not hmac.compare_digest(mac, self._mac(body, owner)) or head != _VERSION:
            raise SealError("not a token of this server and owner")
        return orjson.loads(zlib.decompress(body))

    def _mac(self, body: bytes, owner: str) -> bytes:
        key = hmac.digest(self._secret, owner.encode(), hashlib.sha256)
        return hmac.digest(key, _VERSION + body, hashlib.sha256)
