"""llama.cpp's server by its token API: each sequence in a slot, warm until somebody else needs the place.

    open ──► generate ──► in a slot ──► generate: only what is new is read
              ▲  ▲            │ drop, another's need, the server's death: cold, everything is read again
              │  └── file ◄───┤ save, restore, fork
              └──── left ◄────┘ release: found by its tokens, by a handle of the same cache key

A generation is one streamed `POST /completion` with all token ids and the slot's number. Two things interrupt it:

- *Holes* (`engine.backends.llama_answer`): the ids of a character's first tokens are not sent. Then the model itself is
  asked to write that text once more, after the same tokens, under a grammar that allows nothing else; this answer is not
  streamed and has every id. What the slot holds afterwards is what was told, by construction. Free sampling goes on from
  there. Under a schema no sampling could go on in the middle, so the rest is read first and told at the end.
- The server's death, if `retries` allow: the prompt and what was sampled so far are all it takes to go on.
"""

import logging
from array import array
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol

import attrs
import trio

from engine.backends.base import BackendError, Generated, Handle, Sampling
from engine.backends.http import BackendHttp, BackendRefusedError
from engine.backends.llama_segment import Segment, SegmentCounts
from engine.backends.llama_slots import LlamaHandle, Slot, Slots

log = logging.getLogger(__name__)

DROP_SECONDS: Final = 2.0
"""So long a drop may take to tell the server; whether it hears of it or not, the place is free."""
RECONNECT_SECONDS: Final = 0.2
"""After a server that was not there: until its death is known, and another one may be waited for."""


class LlamaServer(Protocol):
    """Where a server is, and whether it is still the same one."""

    incarnation: int
    """A higher one: it began anew, and nothing of what its slots held is left. The first is 1."""

    async def ready(self) -> BackendHttp:
        """Wait until it can be asked. `BackendError`: not in time."""
        ...

    def discard(self, file: str) -> None:
        """Delete a saved state, if that is possible. Never raises; not a checkpoint."""
        ...


@attrs.define
class RemoteLlama:
    """A server somewhere else. What it saved it keeps: nothing in its API deletes a file."""

    http: BackendHttp
    incarnation: int = 1

    async def ready(self) -> BackendHttp:
        """As `LlamaServer.ready`: whether it is there shows when it is asked."""
        await trio.lowlevel.checkpoint()
        return self.http

    def discard(self, file: str) -> None:
        """As `LlamaServer.discard`: not possible."""


class LlamaBackend:
    """`Backend` over one llama.cpp server. What it can and how many slots it has is asked before the first use.

    `retries`: how often a generation goes on from its tokens after the server died under it. One of which nothing was told
    yet is begun again once in any case; under a schema one of which something was told cannot go on.
    """

    keeps_schemas = True

    def __init__(
        self,
        server: LlamaServer,
        *,
        name: str = "llama",
        context_tokens: int = 0,
        slot_count: int = 0,
        vocabulary: Path | None = None,
        retries: int = 0,
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        """Of one slot. 0 = not known before `start`."""
        self.vocabulary = vocabulary
        """The file that has the model's vocabulary, if it is at hand."""
        self.saves = self.forks = True
        """Until the server shows that it cannot."""
        self.holes = 0
        """How many times ids were missing."""
        self.slots: Slots | None = None
        self._server = server
        self._slot_count = slot_count
        self._retries = retries
        self._known_incarnation = 0
        self._learning = trio.Lock()
        self._end_token: int | None = None
        self._handles = 0
        self._files = token_hex(6)
        """Others may save on the same server."""

    async def start(self) -> None:
        """Learn what the server can, unless that is known. `BackendError`."""
        await self._ready()

    @property
    def slot_count(self) -> int:
        """How many sequences there is a place for; 0 = not known before `start`."""
        return self.slots.count if self.slots is not None else self._slot_count

    @property
    def kv_tokens(self) -> int:
        """How much state there is room for, in tokens; 0 = not known before `start`."""
        return self.context_tokens * self.slot_count

    # --- generating ------------------------------------------------------------------------------------------------

    def open(self, cache_key: str | None = None) -> LlamaHandle:
        """As `Backend.open`."""
        self._handles += 1
        return LlamaHandle(self._handles, cache_key)

    async def generate(
        self, handle: Handle, tokens: "array[int]", sampling: Sampling
    ) -> AsyncGenerator[Generated, None]:
        """As `Backend.generate`. A saved state is brought back first."""
        assert isinstance(handle, LlamaHandle), "made by `open`"
        told = array("I")
        retries, begun_again = self._retries, False
        while True:
            try:
                async with aclosing(self._attempt(handle, tokens, told, sampling)) as pieces:
                    async for piece in pieces:
                        first = not told
                        told.extend(piece.tokens)
                        yield (
                            piece if first else attrs.evolve(piece, reused_tokens=None, computed_tokens=None)
                        )
            except BackendError as error:
                if error.reason not in {"died", "unreachable"} or (told and sampling.schema is not None):
                    raise
                if not told and not begun_again:
                    begun_again = True  # mostly it was dead already, and that was not known yet
                elif retries:
                    retries -= 1
                else:
                    raise
                log.warning("%s: going on from %d tokens: %s", self.name, len(tokens) + len(told), error)
            else:
                return
            await trio.sleep(RECONNECT_SECONDS)

    async def _attempt(
        self, handle: LlamaHandle, tokens: "array[int]", told: "array[int]", sampling: Sampling
    ) -> AsyncGenerator[Generated, None]:
        """Generate in a slot, after what was told already."""
        http = await self._ready()
        everything = array("I", tokens) + told
        slot = await self._slots.take(handle, everything)
        counts = SegmentCounts()
        try:
            if handle.file is not None:
                await self._bring_back(http, handle, slot)
            segment = Segment(
                http=http,
                slot=slot,
                handle=handle,
                sampling=sampling,
                tokens=everything,
                told=len(told),
                end_token=self._end_token,
                counts=counts,
            )
            async with aclosing(segment.pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._slots.give_back(handle, slot)
            self._note(counts)

    def _note(self, counts: SegmentCounts) -> None:
        self.holes += counts.holes
        if counts.lost_tokens:
            self.saves = self.forks = False
            log.warning(
                "%s: a saved state was brought back, but %d of its tokens had to be read again; no more are saved",
                self.name,
                counts.lost_tokens,
            )

    # --- the state -------------------------------------------------------------------------------------------------

    async def drop(self, handle: Handle) -> None:
        """As `Backend.drop`: the server is told within 2 s, or not at all."""
        assert isinstance(handle, LlamaHandle), "made by `open`"
        file, handle.file = handle.file, None
        if file is not None:
            self._server.discard(file)
        slot = self.slots.take_own_nowait(handle) if self.slots is not None else None
        if slot is not None and self.slots is not None:
            try:
                with trio.move_on_after(DROP_SECONDS, shield=True):
                    await self._act(await self._server.ready(), slot, "erase")
            except BackendError as error:
                log.debug("%s: nothing to free: %s", self.name, error)
            finally:
                self.slots.give_back(handle, slot)
        if self.slots is not None:
            self.slots.leave(handle)
        handle.tokens, handle.restored = array("I"), False
        await trio.lowlevel.checkpoint()

    async def release(self, handle: Handle) -> None:
        """As `Backend.release`: the slot keeps what is in it, and remembers whose it is. Nobody has to be told."""
        assert isinstance(handle, LlamaHandle), "made by `open`"
        if handle.cache_key is not None and self.slots is not None:
            self.slots.release(handle)
        await self.drop(handle)  # of a file, or of what is nobody's

    async def save(self, handle: Handle) -> None:
        """As `Backend.save`. A handle without a state stays without one. `BackendError`."""
        assert isinstance(handle, LlamaHandle), "made by `open`"
        file = await self._write(handle, f"{self._files}-{handle.number}", leaving=True)
        if file is not None:
            handle.file = file

    async def restore(self, handle: Handle) -> bool:
        """As `Backend.restore`: also False if the server was not able to. `BackendError`."""
        assert isinstance(handle, LlamaHandle), "made by `open`"
        http = await self._ready()
        if handle.file is None:
            return handle.slot is not None
        slot = await self._slots.take(handle)
        try:
            return await self._bring_back(http, handle, slot)
        finally:
            self._slots.give_back(handle, slot)

    async def fork(self, handle: Handle) -> LlamaHandle:
        """As `Backend.fork`: by a file, which the fork reads when it generates. `BackendError`."""
        assert isinstance(handle, LlamaHandle), "made by `open`"
        other = self.open(handle.cache_key)
        if handle.slot is None and handle.file is not None:
            await self.restore(handle)
        other.file = await self._write(handle, f"{self._files}-{other.number}")
        if other.file is not None:
            other.tokens = handle.tokens[:]
        return other

    async def _write(self, handle: LlamaHandle, file: str, *, leaving: bool = False) -> str | None:
        """Write the handle's state to a file; its name, or None if there is no state, or no way to.

        `leaving`: the place is freed then.
        """
        http = await self._ready()
        if handle.slot is None or not self.saves:
            return None
        slot = await self._slots.take(handle)
        try:
            if not handle.tokens:  # others needed the place while this one waited for its turn
                return None
            await self._act(http, slot, "save", {"filename": file})
            if leaving:
                await self._act(http, slot, "erase")
                if handle.slot is None:  # dropped or released meanwhile
                    slot.leave_nothing()
                    self._server.discard(file)
                    return None
                self._slots.leave(handle)
        finally:
            self._slots.give_back(handle, slot)
        return file

    async def _bring_back(self, http: BackendHttp, handle: LlamaHandle, slot: Slot) -> bool:
        file, handle.file = handle.file, None
        tokens, handle.tokens = handle.tokens, array("I")  # none, until they are there
        try:
            await self._act(http, slot, "restore", {"filename": file})
        except BackendRefusedError as error:
            log.warning("%s: a saved state is gone: %s", self.name, error)
            return False
        finally:
            self._server.discard(str(file))
        handle.tokens, handle.restored, slot.foreign = tokens, True, False
        return True

    @staticmethod
    async def _act(http: BackendHttp, slot: Slot, action: str, body: Mapping[str, Any] | None = None) -> None:
        await http.post_json(f"/slots/{slot.index}?action={action}", body)

    # --- the server ------------------------------------------------------------------------------------------------

    @property
    def _slots(self) -> Slots:
        assert self.slots is not None, "the server is known"
        return self.slots

    async def _ready(self) -> BackendHttp:
        http = await self._server.ready()
        incarnation = self._server.incarnation
        async with self._learning:
            if incarnation > self._known_incarnation:
                await self._learn(http)
                self._known_incarnation = incarnation
        return http

    async def _learn(self, http: BackendHttp) -> None:
        """What `/props` says, and whether there is a folder for saved states: a name that is none tells."""
        props = await http.get_json("/props")
        try:
            context_tokens = int(props["default_generation_settings"]["n_ctx"])
            count, end = int(props["total_slots"]), str(props.get("eos_token") or "")
        except (KeyError, TypeError, ValueError) as error:
            raise BackendError(
                "broke_promise", f"{http.url}/props is none of llama.cpp: it lacks {error}"
            ) from None
        self._end_token = await self._single_token(http, end)
        try:
            await http.post_json("/slots/0?action=restore", {"filename": "../"})
        except BackendRefusedError as error:
            self.saves = self.forks = error.status == 400
        self.context_tokens = context_tokens
        if self.slots is None:
            self.slots = Slots(count)
        else:
            self.slots.forget()

    @staticmethod
    async def _single_token(http: BackendHttp, text: str) -> int | None:
        answer = await http.post_json(
            "/tokenize", {"content": text, "add_special": False, "parse_special": True}
        )
        tokens = answer.get("tokens") if isinstance(answer, Mapping) else None
        return int(tokens[0]) if isinstance(tokens, list) and len(tokens) == 1 else None
