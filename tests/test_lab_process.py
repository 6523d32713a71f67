"""Parts of an experiment in processes of their own: answers come back, and so do failures."""

import os
from collections.abc import Mapping

import pytest
import trio

from demos.lab.process import Answer, ChildError, child_process


def start(_nursery: trio.Nursery) -> Mapping[str, Answer]:
    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    async def fail() -> None:
        raise ValueError("no such thing")

    async def die() -> None:
        os._exit(1)

    return {"double": double, "fail": fail, "die": die}


async def test_a_child_answers_says_what_failed_and_is_missed_when_it_dies() -> None:
    """An answer that raises leaves the child as it was; a death is told to who asks."""
    async with child_process(start, "test") as child:
        assert await child.ask("double", 21) == 42
        with pytest.raises(ChildError, match=r"(?s)the test process failed: .*no such thing"):
            await child.ask("fail")
        assert await child.ask("double", 1) == 2
        with pytest.raises(ChildError, match="the test process has died"):
            await child.ask("die")
