"""What becomes of the child process, with small programs in the place of llama.cpp: real processes, real time."""

import json
import os
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from engine.backends.base import BackendError
from engine.backends.llama_child import LlamaChild, LlamaSettings, thread_count, threads_now
from tests.smollm2 import until

MODEL = Path("x.gguf").absolute()
UP = 'print(\'{"url": "http://127.0.0.1:1"}\', flush=True)\n'
WAIT = "import sys\nsys.stdin.read()\n"


def _child(program: str, **settings: float) -> LlamaChild:
    wanted = LlamaSettings(**({"model": MODEL, "threads": 3} | settings))
    return LlamaChild(wanted, program=(sys.executable, "-c", program))


async def _not_up(child: LlamaChild) -> str:
    with pytest.raises(BackendError) as caught:
        await child.ready()
    assert caught.value.reason == "unreachable"
    return str(caught.value)


async def test_it_is_told_what_to_run(tmp_path):
    """The child gets its settings as one argument, in a folder that is there while it lives, and gone afterwards."""
    told = tmp_path / "told.json"
    child = _child(f"import sys, pathlib\npathlib.Path({str(told)!r}).write_text(sys.argv[1])\n{UP}{WAIT}")
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        settings = json.loads(told.read_text())
        folder = trio.Path(settings.pop("save_folder"))
        assert ((await folder.stat()).st_mode & 0o777) == 0o700
        await (folder / "a").write_bytes(b"state")
        child.discard("a")
        child.discard("b")
        assert [name for name in "ab" if await (folder / name).exists()] == []
        assert (await child.ready()).url == "http://127.0.0.1:1"
        nursery.cancel_scope.cancel()
    assert settings == {
        "model": str(MODEL),
        "slots": 4,
        "context_tokens": 8192,
        "batch_tokens": 64,
        "threads": 3,
    }
    assert (await folder.exists(), await _not_up(child)) == (False, "llama.cpp: it was stopped")


async def test_one_that_dies_is_started_again(caplog):
    """Another process, another incarnation, and how it ended is in the log."""
    child = _child(UP + WAIT)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        first = child.process_id
        os.kill(first, 9)
        await until(lambda: child.incarnation == 2)
        assert (child.process_id != first, (await child.ready()).url) == (True, "http://127.0.0.1:1")
        nursery.cancel_scope.cancel()
    assert f"process {first}, ended with SIGKILL" in caplog.text


async def test_whoever_asks_meanwhile_waits():
    """Between two children `ready` waits for the next."""
    child = _child(UP + WAIT)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        os.kill(child.process_id, 9)
        await until(lambda: child.process_id is None)
        await child.ready()
        assert child.incarnation == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys\nsys.exit('no such model')", "exit code 1 before it was up: no such model"),
        ("import os\nos.kill(os.getpid(), 11)", "SIGSEGV before it was up"),
    ],
)
async def test_one_that_does_not_come_up(program, words, caplog):
    """Nobody waits for it, and the error says its last words; it is not tried again, and nothing else is said."""
    child = _child(program)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        await wait_all_tasks_blocked()
        assert [words in await _not_up(child) for _ in range(2)] == [True, True]
        nursery.cancel_scope.cancel()
    assert [record.message for record in caplog.records if record.name.startswith("engine")] == []


async def test_its_own_errors_are_told(caplog):
    """Of a log the first errors are told, in one line, without what is no text; the rest is noise then."""
    log = "0.1 I srv load: it is said E not to be\n0.2 E load: no tensor \x1b[31m\n0.3 E load: failed\n"
    child = _child(f"import sys\nsys.stderr.write({log!r})\nsys.exit('RuntimeError: no')")
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        said = await _not_up(child)
        nursery.cancel_scope.cancel()
    expected = "it ended with exit code 1 before it was up: load: no tensor  [31m / load: failed"
    assert said == f"llama.cpp: {expected}"


async def test_one_that_says_nothing():
    """The error says that, too."""
    child = _child("raise SystemExit(3)")
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        assert (
            await _not_up(child) == "llama.cpp: it ended with exit code 3 before it was up: it said nothing"
        )
        nursery.cancel_scope.cancel()


async def test_after_one_was_up_others_are_tried(tmp_path, caplog):
    """What once worked may work again: each failure is in the log, and the next try succeeds."""
    broken = tmp_path / "broken"
    child = _child(f"import pathlib\nif pathlib.Path({str(broken)!r}).exists():\n    exit('no')\n{UP}{WAIT}")
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        broken.touch()
        os.kill(child.process_id, 9)
        await until(lambda: "exit code 1 before it was up: no" in caplog.text)
        assert "before it was up: no" in await _not_up(child)
        broken.unlink()
        await until(lambda: child.incarnation == 2)
        nursery.cancel_scope.cancel()
    assert "llama.cpp is started again in 0.2 s" in caplog.text


async def test_what_else_it_prints_is_passed_over(caplog):
    """The line with the address is found among others, and all of them are in the log."""
    caplog.set_level("DEBUG")
    child = _child(f"print('hello')\n{UP}print('and more', flush=True)\n{WAIT}")
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        await until(lambda: "llama.cpp: and more" in caplog.text)
        nursery.cancel_scope.cancel()
    assert "llama.cpp: hello" in caplog.text


async def test_one_that_takes_too_long():
    """It is killed after the time that was set."""
    child = _child(WAIT, ready_seconds=0.3)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        assert "SIGKILL before it was up: no answer within 0.3 s" in await _not_up(child)
        nursery.cancel_scope.cancel()


async def test_a_program_that_is_not_there():
    """What cannot be started is a failure like any other."""
    child = LlamaChild(LlamaSettings(model=MODEL), program=("/no/such/program",))
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        assert "it cannot be started" in await _not_up(child)
        nursery.cancel_scope.cancel()


async def test_before_it_was_started():
    """It says so."""
    assert await _not_up(_child(UP)) == "llama.cpp: it was not started"


@pytest.mark.parametrize(
    ("cores", "load", "ci", "expected"),
    [(8, 0.2, False, 8), (8, 3.6, False, 4), (2, 9.0, False, 1), (64, 0.0, True, 1)],
)
def test_threads_leave_others_their_cores(cores, load, ci, expected):
    """As many as there are idle cores, at least one; in CI one."""
    assert thread_count(cores, load, ci=ci) == expected


def test_threads_of_this_machine():
    """There are some."""
    assert 1 <= threads_now() <= (os.cpu_count() or 1)
