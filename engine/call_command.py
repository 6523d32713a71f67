"""`suspended call`: one rollout from the shell, its tools being shell commands."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Self, TextIO
from urllib.parse import urlsplit, urlunsplit

import attrs
import orjson
import trio

from engine.client import FORMS, ClientRollout, Form, RolloutRefusedError, connect
from engine.handshake import HandshakeFailed
from engine.nursery import leaves
from engine.server import printable
from engine.transport import TransportClosed
from protocol.codec import unstructure
from protocol.errors import ProtocolError
from protocol.events import OutputItemDone, OutputTextDelta, Response
from protocol.items import CALLS, FunctionCall, Message

OK, FAILED = 0, 1
MAX_OUTPUT_BYTES: Final = 1024 * 1024
"""Of a command's output, the beginning is sent."""
MAX_VARIABLE_BYTES: Final = 64 * 1024
"""Longer arguments are on standard input only: the system bounds a process's environment."""

_TOOL = re.compile(
    r"(?P<name>[A-Za-z0-9_-]{1,64})\s*(?:\((?P<arguments>[^()]*)\))?\s*=(?P<command>.+)", re.DOTALL
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@attrs.frozen
class ShellTool:
    """A command of the user's that the model may call."""

    name: str
    arguments: tuple[str, ...]
    command: str

    @classmethod
    def read(cls, text: str) -> Self:
        """From `name=command` or `name(a, b)=command`. `ValueError`: it is neither."""
        match = _TOOL.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"--tool {text!r}: write 'name=command' or 'name(a, b)=command'")
        listed = match["arguments"]
        arguments = (
            ["input"] if listed is None else [name.strip() for name in listed.split(",") if name.strip()]
        )
        for name in arguments:
            if not _WORD.fullmatch(name):
                raise ValueError(
                    f"--tool {text!r}: {name!r} is no name of an argument; use letters, digits and _"
                )
        return cls(match["name"], tuple(arguments), match["command"].strip())

    def schema(self) -> dict[str, Any]:
        """As the request declares it."""
        return {
            "type": "function",
            "name": self.name,
            "description": f"Runs a command on the user's machine: {self.command}",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in self.arguments},
                "required": list(self.arguments),
                "additionalProperties": False,
            },
        }


@attrs.frozen(kw_only=True)
class CallSettings:
    """What to ask, whom, and with which tools."""

    url: str
    form: Form
    model: str
    prompt: str
    key: str | None
    tools: tuple[ShellTool, ...]
    tool_timeout_seconds: float
    environment: Mapping[str, str]
    """Of the commands."""
    as_json: bool

    @classmethod
    def read(
        cls, arguments: Namespace, *, prompt: str, key: str | None, environment: Mapping[str, str]
    ) -> Self:
        """Make them of the command line. `ValueError`: what is wrong with it."""
        if not prompt.strip():
            raise ValueError("the prompt is empty")
        tools = tuple(ShellTool.read(text) for text in arguments.tool)
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ValueError(f"--tool: {max(names, key=names.count)!r} is given twice")
        return cls(
            url=FORMS[arguments.form].url(websocket_url(arguments.url)),
            form=arguments.form,
            model=arguments.model,
            prompt=prompt,
            key=key,
            tools=tools,
            tool_timeout_seconds=arguments.tool_timeout,
            environment=environment,
            as_json=arguments.json,
        )


def websocket_url(url: str) -> str:
    """`http://host/v1`, as SDKs take it, or the WebSocket URL itself. `ValueError`: neither."""
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, an open bracket
        valid = False
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(url.partition("://")[0].lower())
    if not valid or scheme is None:
        raise ValueError(
            f"{url!r} is no address of a server; write http://host:port/v1 or ws://host:port/v1/responses"
        )
    path = parts.path.rstrip("/")
    return urlunsplit(
        (
            scheme,
            parts.netloc,
            path if path.endswith("/responses") else f"{path or '/v1'}/responses",
            parts.query,
            "",
        )
    )


_EXPECTED = (HandshakeFailed, TransportClosed, ProtocolError, OSError)


async def call(settings: CallSettings, out: TextIO, err: TextIO) -> int:
    """Run the rollout: its text goes to `out` as it comes, calls and problems to `err`; the exit code. A checkpoint."""
    try:
        return await _call(settings, out, err)
    except Exception as error:
        problems = list(leaves(error))
        gone = any(isinstance(problem, BrokenPipeError) for problem in problems)  # our reader, not the server
        if gone or not all(isinstance(problem, _EXPECTED) for problem in problems):
            raise
        return _failed(err, f"{settings.url}: {'; '.join(map(str, problems))}")


async def _call(settings: CallSettings, out: TextIO, err: TextIO) -> int:
    commands = _Commands(settings, err)
    async with (
        connect(settings.url, form=settings.form, key=settings.key) as client,
        client.rollout(
            model=settings.model,
            input=settings.prompt,
            tools=[tool.schema() for tool in settings.tools],
            functions={tool.name: partial(commands.run, tool) for tool in settings.tools},
        ) as rollout,
    ):
        try:
            await _print(rollout, None if settings.as_json else out, err)
        except RolloutRefusedError as error:
            return _failed(err, f"refused: {error}")
        response = rollout.response
        if response is None:
            why = f": {rollout.lost}" if rollout.lost else ""
            return _failed(err, f"the connection ended before the rollout did{why}")
        if settings.as_json:
            out.writelines(f"{orjson.dumps(unstructure(ended)).decode()}\n" for ended in rollout.responses)
        return _outcome(response, err)


async def _print(rollout: ClientRollout, out: TextIO | None, err: TextIO) -> None:
    """Print the text as it comes, a line's end after each message."""
    async for event in rollout:
        if isinstance(event, OutputTextDelta) and out is not None:
            out.write(_shown(event.delta, out))
            out.flush()
        elif isinstance(event, OutputItemDone):
            if isinstance(event.item, Message) and out is not None:
                out.write("\n")
                out.flush()
            elif isinstance(event.item, CALLS):
                words = event.item.arguments if isinstance(event.item, FunctionCall) else event.item.input
                _tell(err, f"> {event.item.name} {words[:200]}")


def _shown(text: str, out: TextIO) -> str:
    """A model's text must not steer a terminal; a file gets it as it is."""
    return "".join(c if c in "\n\t" else printable(c) for c in text) if out.isatty() else text


def _tell(err: TextIO, line: str) -> None:
    err.write(f"{printable(line)}\n")
    err.flush()


def _failed(err: TextIO, message: str) -> int:
    _tell(err, f"suspended: {message}")
    return FAILED


def _outcome(response: Response, err: TextIO) -> int:
    if response.status == "completed":
        return OK
    if response.error is not None:
        return _failed(err, f"{response.status}: {response.error.code}: {response.error.message}")
    return _failed(
        err, f"{response.status}: {response.incomplete_details and response.incomplete_details.reason}"
    )


@attrs.frozen
class _Commands:
    """Runs the tools' commands."""

    _settings: CallSettings
    _err: TextIO

    async def run(self, tool: ShellTool, /, *, call_id: str, **arguments: Any) -> str:
        """Run a command; what it printed, and its exit code if that is not 0. A checkpoint; killed when cancelled."""
        output, code = bytearray(), None
        with trio.move_on_after(self._settings.tool_timeout_seconds):
            async with trio.open_nursery() as nursery:
                process: trio.Process = await nursery.start(self._process(tool, call_id, arguments))
                assert process.stdout is not None
                async for chunk in process.stdout:
                    output += chunk[: MAX_OUTPUT_BYTES - len(output)]
                code = await process.wait()
        text = output.decode(errors="replace")
        if code is None:
            text += f"\nerror: killed after {self._settings.tool_timeout_seconds:g} seconds"
        elif code != 0:
            text += f"\nExit code: {code}"
        _tell(self._err, f"< {tool.name}: {len(text.encode())} bytes{f', exit code {code}' if code else ''}")
        return text

    def _process(self, tool: ShellTool, call_id: str, arguments: Mapping[str, Any]) -> "partial[Any]":
        return partial(  # noqa: S604  # the command is the user's own, and no word of the model's gets into it
            trio.run_process,
            tool.command,
            shell=True,
            stdin=orjson.dumps(arguments),
            stdout=subprocess.PIPE,
            check=False,
            env={
                **self._settings.environment,
                **variables(arguments),
                "CALL_ID": call_id,
                "TOOL_NAME": tool.name,
            },
            start_new_session=True,
            deliver_cancel=_kill_all,
        )


def variables(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments as `ARG_name`: text as it is, other values as JSON; what a variable cannot hold is left out."""
    found = {}
    for name, value in arguments.items():
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        if _WORD.fullmatch(name) and "\0" not in text and len(text.encode()) <= MAX_VARIABLE_BYTES:
            found[f"ARG_{name}"] = text
    return found


async def _kill_all(process: trio.Process) -> None:
    """Kill a command and what it started; without process groups, the command alone."""
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
