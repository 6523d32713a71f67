"""`LlamaBackend` against answers that a real llama.cpp gave once (`tests.llama_tape`), and against altered ones."""

from array import array
from contextlib import aclosing
from functools import partial

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from engine.backends.base import BackendError, Sampling
from engine.backends.http import BackendHttp
from engine.backends.llama import LlamaBackend, RemoteLlama
from engine.backends.llama_answer import AnswerReader, literal_grammar
from engine.backends.llama_slots import LlamaHandle, Slots, common_prefix
from tests import llama_tape as tape
from tests.llama_tape import EMOJI, STOP, SUM, Tape

GLOBE, FOX, TWO_LINES = [10813, 230, 231], [10813, 116, 228], [198, 198]
SUM_SAID = [33, 27, 33, 446, 216, 34, 2]
CITY_SAID = [107, 3805, 476, 20721, 1799, 476, 30679, 126, 16736, 122, 18, 198, 109]


async def test_a_whole_answer():
    """Each id comes once, the stop token included, with the counts of the prompt and the finish."""
    assert await tape.whole_answer(Tape("whole_answer").backend()) == (SUM_SAID, (0, len(SUM)), "stop")


async def test_ids_that_the_stream_leaves_out_are_asked_for():
    """Characters of several tokens come with all their ids, in their order; a character that is cut off is left out."""
    backend = Tape("free_with_holes").backend()
    said, counts, finish = await tape.free_with_holes(backend)
    assert (said, counts, finish, backend.holes) == (GLOBE + FOX + TWO_LINES, (0, len(EMOJI)), "length", 2)


async def test_a_cut_in_the_first_character_leaves_nothing():
    """Two tokens of a character of three are no text, so they are not told."""
    backend = Tape("cut_in_a_character").backend()
    assert await tape.cut_in_a_character(backend) == ([], (0, len(EMOJI)), "length")


async def test_holes_under_a_schema_are_filled_at_the_end():
    """Constrained text is sampled in one go; its holes are filled afterwards; the end token that is no stop is left out."""
    backend = Tape("schema_with_holes").backend()
    said, _, finish = await tape.schema_with_holes(backend)
    assert (said, finish, backend.holes) == (CITY_SAID, "stop", 2)


async def test_a_saved_state_is_found_warm():
    """Saved, nothing is resident; restored, all but the last token is found warm, and the answer goes on."""
    backend = Tape("saved_and_restored").backend()
    assert await tape.saved_and_restored(backend) == (
        0,
        True,
        (SUM_SAID[4:], (len(SUM) + 3, 1), "stop"),
    )
    assert backend.saves


@attrs.define
class _Tidy(RemoteLlama):
    """Deletes what was saved, as a child's server does."""

    discarded: list[str] = attrs.field(factory=list)

    def discard(self, file: str) -> None:
        self.discarded.append(file)


@pytest.mark.parametrize("how", ["release", "drop"])
async def test_what_ends_while_it_is_saved_leaves_nothing(how):
    """The file is deleted, and nothing is believed to be in the slot, which was emptied."""
    server = _Tidy(BackendHttp(tape.URL, dialled=Tape("saved_and_restored").dialled))
    backend = LlamaBackend(server)
    handle = backend.open("one")
    await tape.collected(backend, handle, SUM, max_tokens=4)
    slot = handle.slot
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.save, handle)
        while not slot.busy:
            await trio.lowlevel.checkpoint()
        await getattr(backend, how)(handle)
    assert (len(server.discarded), handle.file, handle.slot, list(slot.tokens)) == (1, None, None, [])
    assert (slot.busy, slot.cache_key, handle.resident_tokens) == (False, None, 0)


async def test_a_fork_has_the_state():
    """Fork and original both go on warm, with the same tokens."""
    assert await tape.forked(Tape("forked").backend()) == [(SUM_SAID[4:], (len(SUM) + 3, 1), "stop")] * 2


async def test_after_a_drop_everything_is_read_again():
    """The same tokens come, and the counts say that nothing was warm."""
    assert await tape.dropped(Tape("dropped").backend()) == (
        0,
        (SUM_SAID[4:], (0, len(SUM) + 4), "stop"),
    )


async def test_what_was_released_is_found_by_its_own_key_alone():
    """The same tokens come in each case; warm they are only for the same key, and nobody's handle is always cold."""
    cold, warm = ((SUM_SAID[4:], counts, "stop") for counts in ((0, len(SUM) + 4), (len(SUM) + 3, 1)))
    backend = Tape("released").backend()
    assert await tape.released(backend) == (0, [cold, warm, cold])
    assert backend.slots is not None
    assert (backend.slots.finds, backend.slots.evictions) == (1, 0)


async def test_whose_place_is_taken_is_read_by_its_own_key_alone():
    """In two slots, the third takes the place of one of its own key, warm; the fourth that of another key, cold."""
    backend = Tape("evicted").backend()
    answers = await tape.evicted(backend)
    assert [reused for _, (reused, _), _ in answers] == [0, 0, len(SUM) - 1, 0]
    assert [said for said, _, _ in answers] == [SUM_SAID[:4]] * 4


async def test_a_server_that_reuses_what_it_was_not_to_reuse_breaks_the_promise():
    """A foreign state in the counts of a first prompt fails the generation: nobody is to learn of it."""
    kept = partial(_replaced, '"cache_n":0,"prompt_n":22', '"cache_n":2,"prompt_n":20')
    with pytest.raises(BackendError, match="reused 2 tokens that were not to be found") as caught:
        await tape.whole_answer(Tape("whole_answer", kept).backend())
    assert caught.value.reason == "broke_promise"


async def test_a_refusal_is_typed():
    """What llama.cpp refuses is refused, in its own words."""
    assert await tape.refused(Tape("refused").backend()) == ("refused", True)


async def test_what_the_server_is_is_learned_once():
    """Slots, context and what can be saved come from the server."""
    backend = Tape("whole_answer").backend()
    await backend.start()
    assert backend.slots is not None
    assert (backend.slots.count, backend.context_tokens, backend.saves, backend.forks) == (
        2,
        1024,
        True,
        True,
    )


# --- servers that are not as they should be ------------------------------------------------------------------------


def _replaced(old: str, new: str, text: str) -> str:
    """The same length, so that the lengths of HTTP stay right."""
    assert len(old) == len(new)
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"cache_n":0,"prompt_n":22', '"cache_n":9,"prompt_n":22', "that does not add up"),
        ('"cache_n":0', '"cache_x":0', "lacks 'cache_n'"),
        ('"tokens_predicted":2', '"tokens_predicted":1', "counts 0 more than before"),
        ('"stop_type":"eos"', '"stop_type":"why"', "for a reason nobody gave it"),
        ('"total_slots"', '"total_slotz"', "none of llama.cpp"),
    ],
)
async def test_lies_break_the_promise(old, new, words):
    """Counts that do not add up, and answers that are none, fail this generation with their reason."""
    backend = Tape("whole_answer", partial(_replaced, old, new)).backend()
    with pytest.raises(BackendError, match=words) as caught:
        await tape.whole_answer(backend)
    assert caught.value.reason == "broke_promise"


async def test_a_hole_that_is_filled_with_something_else_breaks_the_promise():
    """If the model does not write the same text again, nobody knows what it sampled."""
    changed = partial(_replaced, '"content":"🌍","tokens":[10813', '"content":"🌏","tokens":[10813')
    with pytest.raises(BackendError, match="without saying by which tokens") as caught:
        await tape.free_with_holes(Tape("free_with_holes", changed).backend())
    assert caught.value.reason == "broke_promise"


async def test_a_restore_that_does_nothing_is_the_last_one(caplog):
    """States that are read again although they were brought back are not saved any more; the answer stands."""
    lost = partial(_replaced, '"cache_n":25,"prompt_n":1,', '"cache_n":0,"prompt_n":26,')
    backend = Tape("saved_and_restored", lost).backend()
    _, was_there, (said, counts, _) = await tape.saved_and_restored(backend)
    assert (was_there, said, counts) == (True, SUM_SAID[4:], (0, len(SUM) + 4))
    assert (backend.saves, backend.forks) == (False, False)
    assert "25 of its tokens had to be read again" in caplog.text


async def test_a_server_that_dies_while_it_samples(autojump_clock):
    """What was told stands, and the generation ends as died."""
    tapes = Tape("whole_answer")
    stream = tapes.left[-1]
    assert stream.turns[-1][0] == "came"
    head, separator, _ = stream.turns[-1][1].partition('"tokens_predicted":3')
    stream.turns[-1][1] = head + separator
    told = []

    async def generate() -> None:
        backend = tapes.backend()
        wanted = Sampling(stop_tokens=STOP, max_tokens=40)
        async with aclosing(backend.generate(backend.open(), SUM, wanted)) as pieces:
            async for piece in pieces:
                told.extend(piece.tokens)

    with pytest.raises(BackendError) as caught:
        await generate()
    assert (told, caught.value.reason) == (SUM_SAID[:2], "died")


async def test_a_silent_server_times_out(autojump_clock):
    """Silence ends the generation after the time that was set."""
    tapes = Tape("whole_answer")
    tapes.left[-1].turns[-1][1] = "(silence)"
    with pytest.raises(BackendError, match="said nothing for 30 s") as caught:
        await tape.whole_answer(tapes.backend())
    assert (caught.value.reason, trio.current_time() >= 30) == ("timeout", True)


async def test_nobody_there(autojump_clock):
    """Without a server a generation is unreachable, after a second knock."""
    tapes = Tape("whole_answer")
    tapes.left.clear()
    with pytest.raises(BackendError, match="nobody listens") as caught:
        await tape.whole_answer(tapes.backend())
    assert (caught.value.reason, trio.current_time() > 0) == ("unreachable", True)


async def test_drop_never_raises():
    """A handle can be dropped without a server, without a state, and twice."""
    tapes = Tape("whole_answer")
    tapes.left.clear()
    backend = tapes.backend()
    handle = backend.open()
    await backend.drop(handle)
    await backend.drop(handle)
    assert handle.resident_tokens == 0


# --- reading answers -----------------------------------------------------------------------------------------------


def test_progress_is_nothing_sampled():
    """Chunks that tell how far the prompt was read have a token that nobody sampled."""
    chunk = {
        "tokens": [0],
        "tokens_predicted": 0,
        "content": "",
        "stop": False,
        "prompt_progress": {"total": 24},
    }
    assert AnswerReader(24).feed(chunk) is None


def test_an_error_in_the_middle_is_said():
    """What the server says went wrong is in the error."""
    with pytest.raises(BackendError, match="out of memory") as caught:
        AnswerReader(1).feed({"error": {"code": 500, "message": "out of memory"}})
    assert caught.value.reason == "refused"


@pytest.mark.parametrize(
    "chunk", [None, 3, [], {}, {"tokens": None, "tokens_predicted": 1}, {"tokens_predicted": "x"}]
)
def test_what_is_no_chunk_breaks_the_promise(chunk):
    """Whatever comes, the error is of our kind."""
    with pytest.raises(BackendError) as caught:
        AnswerReader(1).feed(chunk)
    assert caught.value.reason == "broke_promise"


def test_a_grammar_of_one_text():
    """Everything but letters and digits is written by number, so no text can leave its quotes."""
    assert literal_grammar('a"\\🌍\n') == 'root ::= "a\\U00000022\\U0000005C\\U0001F30D\\U0000000A"'


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_common_prefix_of_any(one, other):
    """It is as long as counting from the first token on says."""
    pairs = list(zip(one, other, strict=False))
    expected = next((at for at, (left, right) in enumerate(pairs) if left != right), len(pairs))
    assert common_prefix(array("I", one), array("I", other)) == expected


@pytest.mark.parametrize(
    ("one", "other", "common"), [("", "", 0), ("ab", "abc", 2), ("abx", "aby", 2), ("x", "y", 0)]
)
def test_common_prefix(one, other, common):
    """How much two sequences share, from the first token on."""
    assert common_prefix(array("I", map(ord, one)), array("I", map(ord, other))) == common


# --- slots ---------------------------------------------------------------------------------------------------------


async def _used(slots: Slots, handle: LlamaHandle) -> int:
    slot = await slots.take(handle)
    handle.tokens = array("I", [1, 2, 3])
    slots.give_back(handle, slot)
    return slot.index


async def test_a_handle_keeps_its_slot():
    """Its state stays where it is while others take what is free."""
    slots, one, two = Slots(2), LlamaHandle(1), LlamaHandle(2)
    assert [await _used(slots, handle) for handle in (one, two, one, two)] == [0, 1, 0, 1]
    assert (slots.evictions, slots.owned, one.resident_tokens) == (0, 2, 2)


async def test_the_one_longest_away_is_evicted():
    """A third handle takes the slot of the one that was used least recently, which is cold then."""
    slots, one, two, three = Slots(2), LlamaHandle(1), LlamaHandle(2), LlamaHandle(3)
    assert [await _used(slots, handle) for handle in (one, two, one, three)] == [0, 1, 0, 1]
    assert (slots.evictions, one.resident_tokens, two.resident_tokens, list(two.tokens)) == (1, 2, 0, [])


async def test_a_slot_given_up_goes_before_others():
    """Whoever needs a place takes one that nobody owns, even if it was used last."""
    slots, one, two, three = Slots(2), LlamaHandle(1), LlamaHandle(2), LlamaHandle(3)
    for handle in (one, two):
        await _used(slots, handle)
    slots.leave(two)
    assert (await _used(slots, three), slots.evictions) == (1, 0)


async def test_busy_slots_are_waited_for_in_turn(autojump_clock):
    """More generations than slots run one after the other, in the order in which they asked."""
    slots, order = Slots(1), []

    async def use(number: int) -> None:
        handle = LlamaHandle(number)
        slot = await slots.take(handle)
        order.append(number)
        await trio.sleep(1)
        slots.give_back(handle, slot)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(use, number)
            await wait_all_tasks_blocked()
    assert (order, trio.current_time()) == ([0, 1, 2, 3], 4.0)


async def test_who_gives_up_waiting_takes_no_place(autojump_clock):
    """A cancelled wait leaves the slot to the next one."""
    slots, one, two, three = Slots(1), LlamaHandle(1), LlamaHandle(2), LlamaHandle(3)
    slot = await slots.take(one)
    with trio.move_on_after(1):
        await slots.take(two)
    slots.give_back(one, slot)
    assert (await _used(slots, three), two.slot) == (0, None)


async def test_a_server_that_began_anew_holds_nothing():
    """After that every handle is cold, and every slot free."""
    slots, one = Slots(2), LlamaHandle(1)
    await _used(slots, one)
    slots.forget()
    assert (slots.owned, one.slot, one.resident_tokens) == (0, None, 0)


# --- what is found by content --------------------------------------------------------------------------------------

LONG, OTHER = array("I", range(100)), array("I", range(500, 600))


async def _taken(slots: Slots, handle: LlamaHandle, tokens: "array[int]") -> tuple[int, int, bool]:
    """Read them as a server does: the slot's number, how many tokens are believed to be there, and whether all are read."""
    slot = await slots.take(handle, tokens)
    seen = slot.index, common_prefix(handle.tokens, tokens), slot.foreign
    slot.foreign, handle.tokens = False, tokens[:]
    slots.give_back(handle, slot)
    return seen


async def _left(slots: Slots, cache_key: str | None, tokens: "array[int]") -> None:
    handle = LlamaHandle(0, cache_key)
    await _taken(slots, handle, tokens)
    slots.release(handle)


@pytest.mark.parametrize(
    ("left", "cache_key", "tokens", "expected"),
    [
        ([("a", LONG)], "a", LONG + OTHER, (0, 100, False)),
        ([("a", LONG)], "a", LONG[:50] + OTHER, (0, 50, False)),
        ([("a", LONG)], "a", LONG[:49] + OTHER, (1, 0, True)),
        ([("a", LONG)], "b", LONG + OTHER, (1, 0, True)),
        ([("a", LONG)], None, LONG + OTHER, (1, 0, True)),
        ([(None, LONG)], None, LONG + OTHER, (1, 0, True)),
        ([("a", LONG), ("b", OTHER)], "a", OTHER, (2, 0, True)),
        ([("a", LONG), ("b", OTHER), ("a", OTHER)], "a", LONG, (0, 100, False)),
        ([("a", LONG), ("b", OTHER), ("c", OTHER)], "b", LONG, (0, 0, True)),
        ([("a", LONG), ("b", OTHER), ("c", OTHER)], "a", LONG[:9], (0, 9, False)),
        ([("b", LONG), ("a", LONG), ("c", OTHER)], "a", LONG[:9], (0, 0, True)),
    ],
    ids=[
        "all of it",
        "half of it",
        "less than half, and there is room",
        "another key",
        "no key",
        "what had no key",
        "the same tokens under another key",
        "the one of most use",
        "nothing, and no room",
        "little, where least is lost",
        "little, where others were longer away",
    ],
)
async def test_which_slot_is_taken(left, cache_key, tokens, expected):
    """What is of use, if most of it is; else an empty one; else the one given up longest ago, whose content only its key reuses."""
    slots = Slots(3)
    handles = [LlamaHandle(number, key) for number, (key, _) in enumerate(left)]
    for handle, (_, held) in zip(handles, left, strict=True):
        await _taken(slots, handle, held)
    for handle in handles:
        slots.release(handle)
    assert await _taken(slots, LlamaHandle(9, cache_key), tokens) == expected


async def test_of_several_the_one_that_has_most_in_common_is_taken():
    """Among states that begin alike the longest common beginning counts, and of equals the later one."""
    slots = Slots(3)
    handles = [LlamaHandle(number, "a") for number in range(3)]
    for handle, common in zip(handles, (40, 60, 60), strict=True):
        await _taken(slots, handle, LONG[:common] + OTHER[:10])
    for handle in handles:
        slots.release(handle)
    assert await _taken(slots, LlamaHandle(9, "a"), LONG) == (2, 60, False)
    assert slots.finds == 1


async def test_what_was_freed_goes_before_what_was_left():
    """Who finds nothing takes a place where nothing is lost, though it was used last."""
    slots = Slots(2)
    kept, freed = LlamaHandle(1, "a"), LlamaHandle(2, "a")
    for handle in (kept, freed):
        await _taken(slots, handle, LONG)
    slots.release(kept)
    slots.lose(freed)
    assert await _taken(slots, LlamaHandle(3, "b"), OTHER) == (1, 0, True)


async def test_a_saved_state_is_brought_back_to_where_least_is_lost():
    """A handle with a file seeks nothing: what is in its slot is foreign until the file is there, and its tokens stay."""
    slots, saved = Slots(2), LlamaHandle(1, "a", LONG[:], file="saved")
    await _left(slots, "a", LONG)
    slot = await slots.take(saved, LONG + OTHER)
    assert (slot.index, slot.foreign, saved.tokens) == (1, True, LONG)


async def test_a_state_in_use_is_not_found():
    """What a suspended handle owns is its own, whoever else would begin alike."""
    slots, owner = Slots(2), LlamaHandle(1, "a")
    await _taken(slots, owner, LONG)
    assert await _taken(slots, LlamaHandle(2, "a"), LONG) == (1, 0, True)
    assert owner.resident_tokens == 99


async def test_what_was_never_read_into_is_still_foreign():
    """A slot taken and given up before the server began is no state of who took it, and another's still."""
    slots, brief = Slots(1), LlamaHandle(2, "b")
    await _left(slots, "a", LONG)
    slots.give_back(brief, await slots.take(brief, LONG))
    slots.release(brief)
    assert await _taken(slots, LlamaHandle(3, "b"), LONG) == (0, 0, True)


async def test_nothing_is_found_in_a_server_that_began_anew():
    """Neither what was left before, nor what was read on the old one by a generation that ended later."""
    slots, busy = Slots(2), LlamaHandle(2, "a")
    await _left(slots, "a", LONG)
    slot = await slots.take(busy, OTHER)
    busy.tokens, slot.foreign = OTHER[:], False
    slots.forget()
    slots.give_back(busy, slot)
    slots.release(busy)
    assert [(await _taken(slots, LlamaHandle(3, "a"), some))[1:] for some in (LONG, OTHER)] == [(0, True)] * 2


@attrs.define
class _Server:
    """What really is in the slots of a server, and whose; it reuses all it can, if it is not told otherwise."""

    held: dict[int, tuple[str | int, "array[int]"]] = attrs.field(factory=dict)

    def read(self, index: int, whose: str | int, tokens: "array[int]", *, foreign: bool) -> int:
        """How much was reused; it is `whose` from now on."""
        last, there = self.held.get(index, (whose, array("I")))
        reused = 0 if foreign else common_prefix(there, tokens)
        assert reused == 0 or last == whose, "nobody learns of another's state"
        self.held[index] = whose, tokens[:]
        return reused


_ACTIONS = st.tuples(
    st.sampled_from(["read"] * 4 + ["give up", "release", "drop", "restart", "save"]),
    st.integers(0, 5),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
)


@given(actions=st.lists(_ACTIONS, max_size=40), slot_count=st.integers(1, 4))
async def test_no_state_has_two_owners_or_is_reused_by_another_key(actions, slot_count):
    """Whatever handles do, a slot has one owner, who believes in no more than is there; nothing of another key is reused."""
    slots, server = Slots(slot_count), _Server()
    handles = [LlamaHandle(number, (None, "a", "b")[number % 3]) for number in range(6)]
    for action, number, ids in actions:
        handle, tokens = handles[number], array("I", ids)
        whose = handle.cache_key or number
        if action in {"read", "give up"}:
            slot = await slots.take(handle, tokens)
            assert slot.owner is handle
            if handle.file is not None:
                assert slot.foreign, "until it is brought back"
                server.held[slot.index], slot.foreign = (whose, handle.tokens), False
                handle.file = None
            if action == "read":
                believed = common_prefix(handle.tokens, tokens)
                assert server.read(slot.index, whose, tokens, foreign=slot.foreign) >= believed
                slot.foreign, handle.tokens = False, tokens
            slots.give_back(handle, slot)
        elif action in {"release", "drop"}:
            handle.file = None
            (slots.release if action == "release" else slots.lose)(handle)
        elif action == "restart":
            server.held.clear()
            slots.forget()
        elif handle.slot is not None and handle.tokens:
            handle.file = "saved"
            slots.leave(handle)
        owned = [handle.slot for handle in handles if handle.slot is not None]
        assert all(slot.owner.slot is slot for slot in owned)
        assert len({slot.index for slot in owned}) == len(owned) == slots.owned


def test_a_remote_server_deletes_nothing():
    """Its API has no way to; whoever saves there must know."""
    server = RemoteLlama(BackendHttp("http://127.0.0.1:1"))
    assert server.discard("x") is None
    assert LlamaBackend(server).context_tokens == 0
