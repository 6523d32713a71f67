"""RFC 6455, judged by others: the Autobahn cases against the engine's transport in both roles.

Without compression and performance there are 247. The suite is one young release; so it is pinned by hash, and a
server that is known to be bad must fail, by the cases that it gets wrong.
"""

import pytest
import trio

from tests.rfc6455.peers import be_tried, count_cases, serve_echo, serve_sloppily
from tests.rfc6455.suite import Suite

pytestmark = pytest.mark.rfc6455

CASES = 247
TIMEOUT_SECONDS = 90
RIGHT_BY_CHANCE = ("1.1.1", "1.1.2", "7.1.1")
"""Whole texts, and a close: what even the sloppy server gets right."""
WRONG = ("2.4", "3.1", "4.1.1", "5.1", "5.3", "5.9", "7.5.1", "7.9.1")
"""A ping, a reserved bit and opcode, bad and good fragments, a bad close: it answers them all alike."""


async def test_the_server_passes_every_case(suite: Suite) -> None:
    """Whatever the suite's client sends, what the server answers and how it closes is as the RFC says."""
    with trio.fail_after(TIMEOUT_SECONDS):
        verdicts = await suite.try_server(serve_echo)
    assert (CASES, {}) == (len(verdicts.of_case), verdicts.failed)


async def test_the_client_passes_every_case(suite: Suite) -> None:
    """The same for the client, which masks, and which is sent unmasked frames."""

    async def meet_all(url: str) -> None:
        assert CASES == await count_cases(url)
        await be_tried(url, CASES)

    with trio.fail_after(TIMEOUT_SECONDS):
        verdicts = await suite.try_client(meet_all)
    assert (CASES, {}) == (len(verdicts.of_case), verdicts.failed)


async def test_a_sloppy_server_fails(suite: Suite) -> None:
    """The suite tells a server that looks at nothing from one that conforms, case by case."""
    with trio.fail_after(TIMEOUT_SECONDS):
        verdicts = await suite.try_server(serve_sloppily, only=[*RIGHT_BY_CHANCE, *WRONG])
    assert {*RIGHT_BY_CHANCE, *WRONG} == set(verdicts.of_case)
    assert set(WRONG) == set(verdicts.failed)
