"""Runs `kosoku`, which drives the Autobahn cases, as a person does: a command, in an environment of its own."""

import subprocess
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import attrs
import orjson
import trio

NOT_OURS = ("9.*", "12.*", "13.*")
"""Performance, and compression, which is never negotiated."""
GOOD = frozenset({"OK", "NON-STRICT", "INFORMATIONAL"})
"""Verdicts that pass; "UNIMPLEMENTED" is none of them."""
PARALLEL = 8


@attrs.frozen
class Verdicts:
    """What the suite says of each case: of the messages, and of the close."""

    of_case: dict[str, tuple[str, str]]

    @property
    def failed(self) -> dict[str, tuple[str, str]]:
        """The cases where not both are good, and why."""
        return {case: both for case, both in self.of_case.items() if not GOOD.issuperset(both)}


@attrs.frozen
class Suite:
    """The installed suite. `reports`: where it writes."""

    command: Path
    reports: Path

    async def try_server(
        self, serve: Callable[[trio.abc.Stream], Awaitable[None]], *, only: Sequence[str] = ()
    ) -> Verdicts:
        """The verdicts on a server, which answers streams of loopback."""
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            url = f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            # a failed case is exit code 1, and is in the report
            await trio.run_process(
                self._words(url, "-p", str(PARALLEL), *_each("-i", only)),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            nursery.cancel_scope.cancel()
        return self._verdicts()

    async def try_client(self, run: Callable[[str], Awaitable[None]]) -> Verdicts:
        """The verdicts on a client, which is given the URL of the suite's server."""
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(
                    trio.run_process,
                    self._words("127.0.0.1:0", "-m", "fuzzingserver"),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    check=False,
                )
            )
            await run(await _announced_url(process.stderr))
        return self._verdicts()

    def _words(self, *words: str) -> list[str]:
        return [str(self.command), *words, *_each("-x", NOT_OURS), "-o", str(self.reports)]

    def _verdicts(self) -> Verdicts:
        (of_agent,) = orjson.loads((self.reports / "index.json").read_bytes()).values()
        return Verdicts(
            {case: (verdict["behavior"], verdict["behaviorClose"]) for case, verdict in of_agent.items()}
        )


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


async def _announced_url(stderr: trio.abc.ReceiveStream) -> str:
    """The suite's server prints one line when it listens, with the URL at its end."""
    line = b""
    while not line.endswith(b"\n"):
        more = await stderr.receive_some()
        assert more, f"the suite has ended: {line!r}"
        line += more
    return line.decode().split()[-1]
