"""The backend without a model keeps the rules of backends, and the check of these rules notices who does not."""

import math
from array import array
from contextlib import aclosing

import attrs
import pytest
import trio

from engine.backends.base import BackendError, Generated, Sampling
from engine.backends.conformance import check_backend
from engine.backends.scripted import LEFT_STATES, Fault, ScriptedBackend, ScriptedPace, pseudo_model

STOP = 999
PROMPT = array("I", range(40))
MORE = array("I", [7, 8, 9])
STOPS = frozenset({STOP})


def model(**options):
    return ScriptedBackend(pseudo_model(100, STOP), **options)


async def check(backend, **options):
    return await check_backend(backend, prompt=PROMPT[:], more=MORE, stop_tokens=STOPS, **options)


async def generate(backend, handle, tokens, **sampling):
    pieces = backend.generate(handle, array("I", tokens), Sampling(stop_tokens=STOPS, **sampling))
    return [piece async for piece in pieces]


def tokens_in(pieces):
    return [token for piece in pieces for token in piece.tokens]


@pytest.mark.parametrize(
    "options",
    [{}, {"piece_tokens": 3}, {"piece_tokens": 100}, {"saves": False}, {"forks": False}],
    ids=["token by token", "three at once", "all at once", "cannot save", "cannot fork"],
)
async def test_it_keeps_the_rules(options):
    """Also in larger pieces, and without what it need not be able to do."""
    report = await check(model(**options), max_tokens=60)
    assert sum(report.cold) == sum(report.warm)
    assert (0, len(MORE) + 1) == (report.cold[0], report.warm[1] + 1)
    assert report.found[1] == 1
    assert (report.restored is not None) == options.get("saves", True)
    assert (report.forked[0] > 0) == options.get("forks", True)


class Wrong(ScriptedBackend):
    """A backend with one bad habit."""

    def __init__(self, habit):
        super().__init__(pseudo_model(100, STOP))
        self.habit = habit
        self.calls = 0

    async def generate(self, handle, tokens, sampling):
        self.calls += 1
        pieces = [piece async for piece in super().generate(handle, tokens, sampling)]
        match self.habit:
            case "no finish":
                pieces[-1] = attrs.evolve(pieces[-1], finish=None)
            case "no stop token":
                pieces[-1] = attrs.evolve(pieces[-1], tokens=())
            case "after the finish":
                pieces.append(Generated())
            case "after the stop":
                pieces.insert(len(pieces) - 1, Generated(tokens=(STOP,)))
            case "short":
                pieces = [*pieces[:2], attrs.evolve(pieces[2], finish="length")]
            case "nothing":
                pieces = [Generated(finish="stop")]
            case "one count":
                pieces[0] = attrs.evolve(pieces[0], computed_tokens=None)
            case "wrong count":
                pieces[0] = attrs.evolve(pieces[0], reused_tokens=pieces[0].reused_tokens + 1)
            case "below nothing":
                pieces[0] = Generated(reused_tokens=-1, computed_tokens=len(tokens) + 1)
            case "changes the prompt":
                tokens.append(1)
            case "forgets":
                pieces[1] = Generated(tokens=(self.calls,))
        for piece in pieces:
            await trio.lowlevel.checkpoint()
            yield piece

    def open(self, cache_key=None):
        return super().open("everybody's" if self.habit == "shares with everybody" else cache_key)

    async def release(self, handle):
        if self.habit != "does not let go":
            await super().release(handle)

    async def save(self, handle):
        if self.habit != "saves nothing":
            await super().save(handle)

    async def restore(self, handle):
        return self.habit != "loses what it saved" and await super().restore(handle)


class Slow(ScriptedBackend):
    """Goes on for a while when nobody wants it any more."""

    async def generate(self, handle, tokens, sampling):
        async with aclosing(super().generate(handle, tokens, sampling)) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except GeneratorExit:
                await trio.sleep(0.3)
                raise


@pytest.mark.parametrize(
    ("habit", "message"),
    [
        ("no finish", "rule 1 .* without a finish"),
        ("no stop token", "rule 1 .* the stop token is not among the tokens"),
        ("after the finish", "rule 1 .* comes after the finish"),
        ("after the stop", "rule 1 .* goes on after a stop token"),
        ("short", "rule 1 .* `length` after 2 tokens"),
        ("nothing", "rule 1 .* nothing was sampled"),
        ("changes the prompt", "rule 1 .* the prompt was changed"),
        ("one count", "rule 4 .* one count of the two"),
        ("wrong count", "rule 4 .* counts a prompt of 40 tokens"),
        ("below nothing", "rule 4 .* counts below 0"),
        ("forgets", "rule 2 .* as one uninterrupted prompt"),
        ("saves nothing", "rule 3 .* stay where they were after a save"),
        ("loses what it saved", "rule 3 .* is not there any more"),
        ("shares with everybody", "rule 6 .* of another cache key finds [0-9]+ tokens of others"),
        ("does not let go", "rule 6 .* are still of a handle that was released"),
    ],
)
async def test_a_bad_habit_is_noticed(habit, message):
    """Each breach is an `AssertionError` that names its rule."""
    with pytest.raises(AssertionError, match=message):
        await check(Wrong(habit), max_tokens=60)


async def test_a_slow_stop_is_noticed(autojump_clock):
    """More than 200 ms after its end is too late."""
    with pytest.raises(AssertionError, match=r"rule 3 .* took 0\.300 s to stop"):
        await check(Slow(pseudo_model(100, STOP)))


async def test_a_script_is_played_segment_by_segment():
    """The n-th segment of a handle is the n-th list; broken off, it is gone on with from what was kept of it."""
    backend = ScriptedBackend([[1, 2, 3, STOP], [4, STOP]])
    handle = backend.open()
    assert [1, 2, 3, STOP] == tokens_in(await generate(backend, handle, [9]))
    assert [4, STOP] == tokens_in(await generate(backend, handle, [9, 1, 2, 3, STOP, 8]))
    other = backend.open()
    assert [1, 2] == tokens_in(await generate(backend, other, [9], max_tokens=2))
    assert [3, STOP] == tokens_in(await generate(backend, other, [9, 1, 2]))
    with pytest.raises(BackendError, match="no segment 3 in its script"):
        await generate(backend, handle, [9, 1, 2, 3, STOP, 8, 4, STOP])


async def test_counts_are_honest():
    """What is held of the same beginning is reused, but for the last token; what was dropped is not."""
    backend, handle = model(), None
    handle = backend.open()
    seen = []
    for tokens in ([1, 2, 3], [1, 2, 3], [1, 2, 9, 9]):
        first = (await generate(backend, handle, tokens))[0]
        seen.append((first.reused_tokens, first.computed_tokens))
    await backend.drop(handle)
    first = (await generate(backend, handle, [1, 2, 3]))[0]
    assert [(0, 3), (2, 1), (2, 2), (0, 3)] == [*seen, (first.reused_tokens, first.computed_tokens)]


async def test_what_was_released_is_found_by_its_content():
    """The state that begins most like a prompt is taken, once, by a handle of its key; what was dropped is not found."""
    backend = model()
    read = [
        ("a", [1, 2, 3]),
        ("a", [1, 2, 4, 5]),
        ("b", [1, 2, 4, 6]),
        (None, [1, 2, 4, 6]),
        ("a", [7, 8, 9]),
    ]
    handles = [backend.open(cache_key) for cache_key, _ in read]
    for handle, (_, tokens) in zip(handles, read, strict=True):
        await generate(backend, handle, tokens, max_tokens=1)
    await backend.drop(handles.pop())
    for handle in handles:
        await backend.release(handle)
    seen = []
    for tokens in ([1, 2, 4, 6], [1, 2, 4, 6], [1, 2, 4, 6], [7, 8, 9]):
        pieces = await generate(backend, backend.open("a"), tokens, max_tokens=1)
        seen.append(pieces[0].reused_tokens)
    assert [3, 2, 0, 0] == seen


async def test_only_so_many_states_are_left():
    """Those that were released last stay."""
    backend = model()
    for first in range(LEFT_STATES + 1):
        handle = backend.open("a")
        await generate(backend, handle, [first, 1], max_tokens=1)
        await backend.release(handle)
    seen = [
        (await generate(backend, backend.open("a"), [first, 1, 2], max_tokens=1))[0].reused_tokens
        for first in range(3)
    ]
    assert [0, 2, 2] == seen


@pytest.mark.parametrize(
    ("kind", "reason", "told"),
    [("dies", "died", 2), ("times out", "timeout", 2), ("refuses", "refused", 0)],
)
async def test_faults_are_typed(kind, reason, told):
    """The n-th generation fails after so many tokens, and the next one is as good as new."""
    backend = ScriptedBackend([[1, 2, 3, STOP]], faults=[Fault(kind, 1, 2)])
    handle, seen = backend.open(), []

    async def listen():
        async for piece in backend.generate(handle, array("I", [9]), Sampling(stop_tokens=STOPS)):
            seen.extend(piece.tokens)

    with pytest.raises(BackendError) as failed:
        await listen()
    assert (reason, told, 0) == (failed.value.reason, len(seen), backend.running)
    assert [1, 2, 3, STOP] == seen + tokens_in(await generate(backend, handle, [9, *seen]))


async def test_time_passes_as_said(autojump_clock):
    """Reading takes so long for each token that is new, sampling for each one sampled."""
    backend = ScriptedBackend([[1, 2, STOP]], pace=ScriptedPace(prefill_seconds=0.5, token_seconds=0.25))
    began = trio.current_time()
    await generate(backend, backend.open(), [5, 6])
    assert math.isclose(2 * 0.5 + 3 * 0.25, trio.current_time() - began)


async def test_nothing_runs_once_a_generation_is_closed():
    """Closed after its first token, it samples no other one."""
    backend = model()
    pieces = backend.generate(backend.open(), PROMPT, Sampling(stop_tokens=STOPS))
    seen = []
    async for piece in pieces:
        seen += piece.tokens
        if seen:
            break
    await pieces.aclose()
    assert (1, 1, 0) == (len(seen), backend.generated_tokens, backend.running)
