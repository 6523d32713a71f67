"""The rules of `engine.backends.base` for llama.cpp in a child process, with SmolLM2: real tokens, real time."""

import os
import signal
import subprocess
import sys
import time
from array import array
from contextlib import aclosing
from functools import partial
from pathlib import Path

import orjson
import pytest
import trio

from engine.backends.base import BackendError, Sampling
from engine.backends.conformance import check_backend
from tests.llama_tape import CITY, STOP, collected
from tests.smollm2 import ASSISTANT, END, USER, asked, running, slot_state, tokens_of, until, weights

pytestmark = pytest.mark.models

STORY = "Write a long story about a fox."
CANCEL_SECONDS = 0.2
ROOT = Path(__file__).resolve().parent.parent


async def _turns(child, *texts):
    return [[*END, *USER, *await tokens_of(child, text), *END, *ASSISTANT] for text in texts]


async def test_it_keeps_the_rules():
    """The conformance check of all backends passes."""
    async with running(slots=3) as (child, backend):
        (more,) = await _turns(child, "Another one, please. 🌍")
        prompt = array("I", await asked(child, "Name a colour."))
        report = await check_backend(backend, prompt=prompt, more=array("I", more), stop_tokens=STOP)
        assert (report.restored is not None, report.forked is not None) == (True, True)
        assert report.found[1] == 1


def test_the_benchmark_runs():
    """A smoke run of `tests.bench.warm` ends well and prints its ratios."""
    weights()
    command = [sys.executable, "-m", "tests.bench.warm", "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert (run.returncode, run.stderr) == (0, "")
    assert "ratio cold/warm" in run.stdout


async def test_suspend_and_append_is_one_uninterrupted_prompt():
    """Rules 1, 2 and 4: three segments give the same tokens as each whole prompt on its own, and read only what is new."""
    async with running() as (child, backend):
        live, turns = (
            backend.open(),
            [await asked(child, "Name a colour."), *await _turns(child, "Another.", "And 🌍?")],
        )
        whole: list[int] = []
        unread = 0
        for turn in turns:
            whole += turn
            said, (reused, computed), _ = await collected(backend, live, whole, max_tokens=24)
            fresh = backend.open()
            again, (none, everything), _ = await collected(backend, fresh, whole, max_tokens=24)
            await backend.drop(fresh)
            assert (said, none, everything, reused + computed) == (again, 0, len(whole), len(whole))
            assert computed == len(turn) + unread
            ended = said[-1] == END[0]  # which the next turn brings
            unread = 0 if ended else 1
            whole += said[:-1] if ended else said


async def test_after_a_drop_the_same_tokens_come():
    """Rule 2 after `drop`: everything is read again, and the tokens are the same."""
    async with running() as (child, backend):
        prompt = await asked(child, "What is the capital of France?")
        warm, cold = backend.open(), backend.open()
        said, _, _ = await collected(backend, warm, prompt, max_tokens=4)
        await collected(backend, cold, prompt, max_tokens=4)
        await backend.drop(cold)
        assert (cold.resident_tokens, warm.resident_tokens) == (0, len(prompt) + 3)
        one = await collected(backend, warm, prompt + said, max_tokens=24)
        other = await collected(backend, cold, prompt + said, max_tokens=24)
        assert (one[0], one[1], other[1]) == (other[0], (len(prompt) + 3, 1), (0, len(prompt) + 4))


async def test_saved_and_restored_is_identical():
    """A state that was away while others used all slots comes back: the same tokens, and nothing is read again."""
    async with running() as (child, backend):
        prompt = await asked(child, "What is the capital of France?")
        kept, away = backend.open(), backend.open()
        for handle in (kept, away):
            said, _, _ = await collected(backend, handle, prompt, max_tokens=4)
        await backend.save(away)
        other = backend.open()
        await collected(backend, other, await asked(child, STORY), max_tokens=4)
        assert (away.resident_tokens, backend.slots.evictions) == (0, 0)
        await backend.drop(other)
        assert await backend.restore(away)
        resumed = [await collected(backend, handle, prompt + said, max_tokens=24) for handle in (away, kept)]
        assert resumed[0] == resumed[1]
        assert resumed[0][1] == (len(prompt) + 3, 1)


async def test_a_fork_goes_its_own_way():
    """Two continuations of one state, each the same as on its own, and warm."""
    async with running() as (child, backend):
        prompt = await asked(child, "Name a colour.")
        handle = backend.open()
        said, _, _ = await collected(backend, handle, prompt, max_tokens=3)
        fork = await backend.fork(handle)
        left, right = await _turns(child, "Why?", "Name a fruit.")
        gone_on = [
            await collected(backend, each, prompt + said + turn, max_tokens=12)
            for each, turn in ((handle, left), (fork, right))
        ]
        assert [counts[0] for _, counts, _ in gone_on] == [len(prompt) + 2] * 2
        fresh = backend.open()
        alone = [
            await collected(backend, fresh, prompt + said + turn, max_tokens=12) for turn in (left, right)
        ]
        assert [said for said, _, _ in gone_on] == [said for said, _, _ in alone]


async def test_more_handles_than_slots():
    """Whoever lost its place reads everything again, and says the same."""
    async with running(slots=1) as (child, backend):
        prompt = await asked(child, "Name a colour.")
        one, two = backend.open(), backend.open()
        said, _, _ = await collected(backend, one, prompt, max_tokens=4)
        warm, warm_counts, _ = await collected(backend, one, prompt + said, max_tokens=8)
        await collected(backend, two, await asked(child, STORY), max_tokens=4)
        cold, cold_counts, _ = await collected(backend, one, prompt + said, max_tokens=8)
        assert (cold, warm_counts, cold_counts[1] > warm_counts[1]) == (warm, (len(prompt) + 3, 1), True)
        assert backend.slots.evictions == 2


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_cancel_stops_the_backend_within_200_ms(how):
    """Rule 3, counted at the backend: idle within 200 ms (others' load set aside), and the handle good for what was told."""
    async with running() as (child, backend):
        prompt = array("I", await asked(child, STORY))
        measured = [await _cancelled(child, backend, prompt, how) for _ in range(3)]
        assert min(seconds for seconds, _, _ in measured) < CANCEL_SECONDS, measured
        assert max(seconds for _, seconds, _ in measured) < CANCEL_SECONDS, measured
        assert max(tokens for _, _, tokens in measured) <= 6, measured


async def _cancelled(child, backend, prompt, how):
    """Seconds and seconds of CPU until the slot was idle, and how many tokens more it had sampled meanwhile."""
    handle, told = backend.open(), array("I")
    with trio.CancelScope() as scope:
        async with aclosing(backend.generate(handle, prompt, Sampling(max_tokens=800))) as pieces:
            async for piece in pieces:
                told.extend(piece.tokens)
                if len(told) >= 12 and how == "closed":
                    break
                if len(told) >= 12:
                    scope.cancel()
    assert scope.cancelled_caught == (how == "cancelled")
    began, cpu_began = time.monotonic(), _cpu_seconds(child)
    while (state := await slot_state(child, handle.slot.index))[0]:
        assert time.monotonic() - began < 10
    seconds, cpu_seconds = time.monotonic() - began, _cpu_seconds(child) - cpu_began
    _, (reused, computed), _ = await collected(backend, handle, prompt + told, max_tokens=2)
    assert (reused, computed) == (len(prompt) + len(told) - 1, 1)
    await backend.drop(handle)
    return seconds, cpu_seconds, state[1] - len(prompt) - len(told)


async def test_cancelled_while_it_reads_the_prompt():
    """It stops at the end of the batch that it reads; the next generation finds what was read so far, and is right."""
    async with running(batch_tokens=16) as (child, backend):
        prompt = await asked(child, STORY * 40)
        handle = backend.open()
        with trio.move_on_after(0.5) as scope:
            await collected(backend, handle, prompt, max_tokens=1)
        state = await slot_state(child)
        while state[0]:
            state = await slot_state(child)
        assert (scope.cancelled_caught, state[1] < len(prompt) - 100) == (True, True), state
        said, (reused, _), _ = await collected(backend, handle, prompt, max_tokens=1)
        fresh, _, _ = await collected(backend, backend.open(), prompt, max_tokens=1)
        assert (said, reused <= state[1]) == (fresh, True)


def _cpu_seconds(child):
    return time.clock_gettime(~child.process_id << 3 | 2)  # as `clock_getcpuclockid` of Linux makes it


async def test_a_schema_holds():
    """Under a JSON schema the text fits it, whatever the characters, and ends by itself."""
    async with running() as (child, backend):
        prompt = await asked(child, "Give me the city of 東京 as JSON, in Japanese characters.")
        said, _, finish = await collected(backend, backend.open(), prompt, schema=CITY, max_tokens=60)
        http = await child.ready()
        text = (await http.post_json("/detokenize", {"tokens": said}))["content"]
        assert (orjson.loads(text), finish, backend.holes > 0) == ({"city": "東京"}, "stop", True)


async def test_a_seed_repeats():
    """Sampling with a seed gives the same tokens again, and another seed other ones."""
    async with running() as (child, backend):
        prompt = await asked(child, STORY)
        wanted = {"temperature": 1.0, "max_tokens": 16}
        runs = [
            (await collected(backend, backend.open(), prompt, seed=seed, **wanted))[0] for seed in (1, 1, 2)
        ]
        assert (runs[0] == runs[1], runs[0] == runs[2]) == (True, False)


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_child_is_killed(retries):
    """Killed with -9 while one samples and two are suspended: that one fails typed, or goes on; the two go on and finish."""
    async with running(slots=3, retries=retries) as (child, backend):
        prompts = [await asked(child, text) for text in (STORY, "Name a colour.", "What is 1+1?")]
        expected = []
        for prompt in prompts:
            handle = backend.open()
            expected.append((await collected(backend, handle, prompt, max_tokens=24))[0])
            await backend.drop(handle)
        suspended = [backend.open(), backend.open()]
        begun = [
            (await collected(backend, handle, prompt, max_tokens=4))[0]
            for handle, prompt in zip(suspended, prompts[1:], strict=True)
        ]
        before = child.process_id
        told: list[int] = []
        reason = None
        try:
            wanted = Sampling(max_tokens=24, stop_tokens=STOP)
            async with aclosing(backend.generate(backend.open(), array("I", prompts[0]), wanted)) as pieces:
                async for piece in pieces:
                    told.extend(piece.tokens)
                    if child.process_id == before and len(told) == 8:
                        os.kill(before, signal.SIGKILL)
        except BackendError as error:
            reason = error.reason
        if retries:
            assert (told, reason) == (expected[0], None)
        else:
            assert (told[:8], reason) == (expected[0][:8], "died")
        for handle, prompt, said, whole in zip(suspended, prompts[1:], begun, expected[1:], strict=True):
            rest, counts, _ = await collected(backend, handle, prompt + said, max_tokens=20)
            assert (said + rest, counts) == (whole, (0, len(prompt) + len(said)))
        assert (child.incarnation, child.process_id != before) == (2, True)


async def test_a_saved_state_outlives_the_child():
    """What lies in a file is found warm by the next child."""
    async with running() as (child, backend):
        prompt = await asked(child, "Name a colour.")
        handle = backend.open()
        said, _, _ = await collected(backend, handle, prompt, max_tokens=4)
        await backend.save(handle)
        os.kill(child.process_id, signal.SIGKILL)
        await until(lambda: child.incarnation == 2)
        assert (await collected(backend, handle, prompt + said, max_tokens=4))[1] == (len(prompt) + 3, 1)


async def test_nothing_stays_behind(tmp_path):
    """The child ends when whoever started it is killed with -9."""
    program = (
        "import sys, trio; from pathlib import Path; from engine.backends.llama_child import *\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        child = LlamaChild(LlamaSettings(model=Path(sys.argv[1]), slots=1, context_tokens=256, threads=1))\n"
        "        await nursery.start(child.run)\n"
        "        print(child.process_id, flush=True)\n"
        "trio.run(main)\n"
    )
    command = [sys.executable, "-c", program, str(weights())]
    async with trio.open_nursery() as nursery:
        run = partial(
            trio.run_process,
            command,
            stdout=subprocess.PIPE,
            check=False,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
        process = await nursery.start(run)
        child = int(await process.stdout.receive_some())
        process.kill()
        await until(lambda: not _runs(child))
        await process.stdout.aclose()


def _runs(process_id):
    try:
        return "State:\tZ" not in Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False
