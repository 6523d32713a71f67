"""From the outputs of tools to the next token: a sequence that stayed warm against one that is read again.

Workload: SmolLM2 in llama.cpp's child process, one thread. A context of 1,024 or 4,096 tokens, 32 sampled tokens, 64 tokens of
a tool's output; measured is the time from the request to the first sampled token.

- warm: the sequence lies in its slot; 64 tokens are read.
- restored: its state was saved, and is brought back first. (The save is printed beside it.)
- cold: it was dropped, and all of it is read.

Contract: the same tokens go in, and under greedy sampling the same token comes out: always for what was restored, nearly
always for what was read again, as its numbers are rounded otherwise (how often is printed). How much was reused is checked
by the backend's own counts. Each trial brings another output, so nothing of it is warm by accident.

Variants run in random order in blocks; ratios are taken inside a block. Beside the wall clock's ratio is that of the child's CPU
time, which other load on the machine distorts less. A block at 4,096 takes a minute, so there are few.
Not measured: batches of several sequences, more threads, other models.
"""

import random
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import attrs
import trio

import engine.rollout
from engine.backends.base import Sampling
from engine.backends.llama import LlamaBackend
from engine.backends.llama_child import LlamaChild
from engine.backends.llama_slots import LlamaHandle
from tests.bench.harness import Spread, Verdicts, is_quick
from tests.smollm2 import ASSISTANT, END, USER, running, tokens_of

TEXT = Path(engine.rollout.__file__)
"""Real text: in random tokens nothing is likely, and rounding decides what comes next."""
SAMPLED_TOKENS = 32
OUTPUT_TOKENS = 64
TARGETS = {1024: 10.0, 4096: 25.0}
"""Cold is at least so many times slower."""
BLOCKS = {1024: 7, 4096: 3}


@attrs.frozen
class Trial:
    """One resumption."""

    seconds: float
    cpu_seconds: float
    first_token: int
    reused_tokens: int


class Workbench:
    """One context, and the ways to go on from it."""

    def __init__(self, child: LlamaChild, backend: LlamaBackend, context_tokens: int) -> None:
        self._child = child
        self._backend = backend
        self._context_tokens = context_tokens
        self._draw = random.Random(context_tokens)
        self._source = TEXT.read_text()
        self._context = self._text = array("I")
        self._warm, self._saved, self._cold = (backend.open() for _ in range(3))
        self.save_seconds: list[float] = []

    def _output(self) -> "array[int]":
        """What a tool said, and the opening of the model's next words."""
        around = array("I", (*END, *ASSISTANT))
        at = self._draw.randrange(len(self._text) - OUTPUT_TOKENS)
        return self._text[at : at + OUTPUT_TOKENS - len(around)] + around

    async def prepare(self) -> None:
        """Read the context, which is some source text, and sample."""
        self._text = array("I", await tokens_of(self._child, self._source))
        head, tail = array("I", USER), array("I", (*END, *ASSISTANT))
        self._context = head + self._text[: self._context_tokens - len(head) - len(tail)] + tail
        assert len(self._context) == self._context_tokens, "the text is long enough"
        wanted = Sampling(max_tokens=SAMPLED_TOKENS)
        said = array("I")
        async with aclosing(self._backend.generate(self._warm, self._context, wanted)) as pieces:
            async for piece in pieces:
                said.extend(piece.tokens)
        self._context += said
        self._saved = await self._backend.fork(self._warm)

    async def block(self) -> "Mapping[str, Trial]":
        """Each way once, with the same output."""
        tokens = self._context + self._output()
        ways: dict[str, Callable[[Sequence[int]], Awaitable[Trial]]] = {
            "warm": self._go_on,
            "restored": self._restored,
            "cold": self._from_nothing,
        }
        trials = {name: await ways[name](tokens) for name in self._draw.sample(list(ways), len(ways))}
        assert trials["restored"].first_token == trials["warm"].first_token, trials
        assert trials["cold"].reused_tokens == 0, trials
        assert min(trials[name].reused_tokens for name in ("warm", "restored")) >= len(self._context) - 1, (
            trials
        )
        return trials

    async def _go_on(self, tokens: "Sequence[int]") -> Trial:
        return await self._measured(self._warm, tokens)

    async def _restored(self, tokens: "Sequence[int]") -> Trial:
        trial = await self._measured(self._saved, tokens)
        began = time.perf_counter()
        await self._backend.save(self._saved)
        self.save_seconds.append(time.perf_counter() - began)
        return trial

    async def _from_nothing(self, tokens: "Sequence[int]") -> Trial:
        await self._backend.drop(self._cold)
        trial = await self._measured(self._cold, tokens)
        await self._backend.drop(self._cold)
        return trial

    async def _measured(self, handle: LlamaHandle, tokens: "Sequence[int]") -> Trial:
        began, cpu_began = time.perf_counter(), self._cpu_seconds()
        async with aclosing(
            self._backend.generate(handle, array("I", tokens), Sampling(max_tokens=1))
        ) as pieces:
            first = await anext(pieces)
            seconds, cpu_seconds = time.perf_counter() - began, self._cpu_seconds() - cpu_began
            async for _ in pieces:
                pass
        assert first.reused_tokens is not None
        return Trial(seconds, cpu_seconds, first.tokens[0], first.reused_tokens)

    def _cpu_seconds(self) -> float:
        assert self._child.process_id is not None, "it is up"
        return time.clock_gettime(
            ~self._child.process_id << 3 | 2
        )  # as `clock_getcpuclockid` of Linux makes it


def _report(
    context_tokens: int, blocks: "list[Mapping[str, Trial]]", bench: Workbench, verdicts: Verdicts
) -> None:
    print(
        f"context of {context_tokens:,} tokens, {SAMPLED_TOKENS} sampled, {OUTPUT_TOKENS} appended; median (range)"
    )
    for name in ("warm", "restored", "cold"):
        print(f"      {name}: {Spread(tuple(block[name].seconds for block in blocks))} s to the first token")
    same = sum(block["cold"].first_token == block["warm"].first_token for block in blocks)
    print(f"      the same token, warm and cold: {same} of {len(blocks)}")
    print(f"      save: {Spread(tuple(bench.save_seconds))} s")
    for name in ("warm", "restored"):
        wall = Spread(tuple(block["cold"].seconds / block[name].seconds for block in blocks))
        cpu = Spread(tuple(block["cold"].cpu_seconds / block[name].cpu_seconds for block in blocks))
        print(f"      ratio cold/{name}: {wall}; of the child's CPU time: {cpu}")
    share = Spread(tuple(block["warm"].seconds / block["cold"].seconds for block in blocks))
    bound = 1 / TARGETS.get(context_tokens, TARGETS[1024])
    verdicts.at_most(f"warm/cold at {context_tokens:,}", share.median, bound)


async def _run(*, quick: bool) -> int:
    verdicts = Verdicts(quick=quick)
    for context_tokens in (128,) if quick else TARGETS:
        async with running(slots=3, context_tokens=context_tokens + 256) as (child, backend):
            bench = Workbench(child, backend, context_tokens)
            await bench.prepare()
            blocks = [await bench.block() for _ in range(1 if quick else BLOCKS[context_tokens])]
            _report(context_tokens, blocks, bench, verdicts)
    return verdicts.exit_code


def main(arguments: "list[str] | None" = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    return trio.run(lambda: _run(quick=quick))


if __name__ == "__main__":
    sys.exit(main())
