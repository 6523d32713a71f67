"""What optimised HTTP remembers between requests: contexts, found again by their content.

A client over HTTP sends its whole history with each request.
The history is a chain, and so is its key: each item's digest is made of its own bytes and the digest before it,
the first one of the owner and the preamble. The longest chain that is known is the prefix whose work is done:
it comes back as the snapshot of a parent, and only the items after it are validated, rendered and classified.

The keys are digests of all bytes that matter, so equal keys mean equal contexts; a property test holds that a
request with the cache and one without it differ in nothing but the work.
Two contexts of a response are remembered: as it began, and with its output, as the next request will repeat it.
The second is made by the stage that the next request would use: the output is an input there.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

import attrs
import orjson

from engine.classified_text import text_of_input
from engine.config import Limits
from engine.context import Preamble, held_bytes
from engine.snapshot import Snapshot
from engine.stages import Classify, Streams
from protocol import codec
from protocol.items import Item

_DIGEST_BYTES: Final = 16
_FIRST: Final = b"the beginning"
_WEIGHINGS: Final = 8
"""The memory is summed up each time an eighth of its limit may have been added."""


@attrs.frozen
class Prefix:
    """A beginning of a history whose work is done."""

    snapshot: Snapshot
    items: int
    """How many it holds."""
    matches: tuple[str, ...]
    """Names of what the classifier found in it."""

    def was_read(self, model: str) -> None:
        """A model has read all of it."""
        self.snapshot.read_by, self.snapshot.read_tokens = model, len(self.snapshot.context)


@attrs.frozen
class PrefixStatistics:
    """What the cache holds, and what it was good for."""

    prefixes: int
    hits: int
    misses: int
    reused_tokens: int
    reused_items: int
    digested_items: int
    """The price: a history is digested from its beginning to be recognised, each time it comes."""
    classified_characters: int
    """What the model wrote, classified as the input that it is in the next request."""


class PrefixCache:
    """The prefixes of a server, the least recently used going first. Nothing here is a checkpoint."""

    def __init__(self, limits: Limits, classify: Classify) -> None:
        self._limits = limits
        self._classify = classify
        self._prefixes: OrderedDict[bytes, Prefix] = OrderedDict()
        self._unweighed_bytes = 0
        self._hits = self._misses = self._reused_tokens = self._reused_items = 0
        self._digested_items = self._classified_characters = 0

    def statistics(self) -> PrefixStatistics:
        """A frozen view."""
        return PrefixStatistics(
            len(self._prefixes),
            self._hits,
            self._misses,
            self._reused_tokens,
            self._reused_items,
            self._digested_items,
            self._classified_characters,
        )

    def find(self, chain: Sequence[bytes]) -> Prefix | None:
        """The longest known prefix of a history, given its chain of keys."""
        self._digested_items += len(chain) - 1
        for place in range(len(chain) - 1, 0, -1):
            prefix = self._prefixes.get(chain[place])
            if prefix is not None:
                self._prefixes.move_to_end(chain[place])
                self._hits += 1
                self._reused_items += prefix.items
                self._reused_tokens += len(prefix.snapshot.context)
                return prefix
        self._misses += 1
        return None

    def keep(
        self,
        chain: Sequence[bytes],
        snapshot: Snapshot,
        matches: Sequence[str],
        *,
        goes_on: Prefix | None = None,
    ) -> Prefix:
        """Remember the context of the history with this chain, with what was found in it from its beginning.

        `goes_on`: the prefix that it goes on from. It is found instead of that one from now on, also if it is cut before a
        model has read it; then what was read of the shorter one is what is read of this.
        """
        fresh = attrs.evolve(
            snapshot,
            response_id="",  # whose it was is nobody's business: a history is found by its content
            streams=Streams(input=snapshot.streams.input),  # a new request's output is a new text
            held_tokens=len(snapshot.context),  # and its sampling holds nothing
            read_by=goes_on.snapshot.read_by if goes_on else None,
            read_tokens=goes_on.snapshot.read_tokens if goes_on else 0,
        )
        # references in a history are no items of its context, so its length is the chain's
        prefix = self._prefixes[chain[-1]] = Prefix(fresh, len(chain) - 1, tuple(matches))
        self._prefixes.move_to_end(chain[-1])
        if len(self._prefixes) > self._limits.max_prefixes:
            self._prefixes.popitem(last=False)
        self._unweighed_bytes += snapshot.context.bytes
        if self._unweighed_bytes > self._limits.max_prefix_bytes // _WEIGHINGS:
            self._shrink()
        return prefix

    def keep_with_output(
        self, chain: Sequence[bytes], begun: Prefix, snapshot: Snapshot, output: Sequence[Item]
    ) -> Prefix:
        """Remember the context with its output, as the next request repeats it.

        `begun`: what was kept under `chain` when the response began.
        """
        streams, matches = begun.snapshot.streams, list(begun.matches)
        for item in output:
            text = text_of_input(item)
            streams, found = self._classify.input_text(streams, text)
            self._classified_characters += len(text)
            matches += (match.name for match in found)
        self._digested_items += len(output)
        longer = [*chain, *chain_from(chain[-1], output)]
        kept = self.keep(longer, attrs.evolve(snapshot, streams=streams), matches, goes_on=begun)
        if begun.snapshot.read_by is not None and begun.snapshot.read_tokens == len(begun.snapshot.context):
            kept.was_read(begun.snapshot.read_by)  # who has read what was asked has written the answer
        return kept

    def _shrink(self) -> None:
        """Contexts of one conversation share their memory, so the sum is taken of all at once, and not each time."""
        self._unweighed_bytes = 0
        while len(self._prefixes) > 1 and self._held_bytes() > self._limits.max_prefix_bytes:
            self._prefixes.popitem(last=False)

    def _held_bytes(self) -> int:
        return held_bytes(prefix.snapshot.context for prefix in self._prefixes.values())


def chain_of(owner: str, preamble: Preamble, items: Sequence[Item]) -> list[bytes]:
    """The key of each prefix of a history, from the one without items to the whole."""
    first = orjson.dumps([owner, preamble.instructions, list(preamble.tools)])
    start = _digest(_FIRST, first)
    return [start, *chain_from(start, items)]


def chain_from(key: bytes, items: Sequence[Item]) -> Iterator[bytes]:
    """The keys that follow `key` when these items are appended, one each."""
    for item in items:
        key = _digest(key, orjson.dumps(codec.unstructure(item)))
        yield key


def _digest(before: bytes, content: bytes) -> bytes:
    return blake2b(before + content, digest_size=_DIGEST_BYTES).digest()
