"""A shell user: runs the commands of the user's message one at a time and sums up what they answered.

Codex CLI is driven with this: it offers a tool `exec_command` and runs what it is asked to.
Only the last user message is read, since Codex puts its own context into user messages before it.

A command is one line; a line that ends in a backslash goes on in the next; comments are no commands.
If the message has fenced blocks, only what is inside of them counts.
If lines begin with `$ `, those are the commands; else all lines are, except, outside of a fenced block,
what looks like a sentence: a capital letter at its start, or a word and a punctuation mark at its end.

A command that takes long is waited for with `write_stdin`, where that is offered: Codex answers after ten seconds,
whether the command has ended or not, and ends what still runs when the rollout is over.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from engine.samplers.policy import Say, Script, Tools, Use, program

ARGUMENT_OF: Mapping[str, str] = {"exec_command": "cmd", "shell_command": "command"}
"""The tools that run a command, best first, and what each calls it."""

WAITING_TOOL = "write_stdin"
WAIT_MILLISECONDS = 10_000
MAX_WAITS = 60
"""For each command, so that one which never ends does not keep the others waiting for ever."""

_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_EXIT_CODE = re.compile(r"^(?:Exit code:|Process exited with code) *(-?\d+)", re.MULTILINE)
_STILL_RUNNING = re.compile(r"^Process running with session ID *(\d+)", re.MULTILINE)
_SENTENCE = re.compile(r"[A-Z][a-z]*\b(?!=)|.*\w[.?!:]$", re.DOTALL)
_BODY = re.compile(r"^Output:\n(?:Total output lines: \d+\n)?", re.MULTILINE)
"""Where the command's own words begin; Codex puts a line before them if it has cut something out."""


def shell(prompt: str, tools: Tools) -> Script:
    """Run each command of the prompt with the request's own tool, then say what came of it."""
    tool = _command_tool(tools)
    if tool is None:
        yield Say(
            "I can run no commands: the request offers neither "
            f"{' nor '.join(f'`{name}`' for name in ARGUMENT_OF)}. Add one of them to its `tools`."
        )
        return
    found = commands(prompt)
    if not found:
        yield Say("I found no command in your message: put them in a fenced block, or after `$ `.")
        return
    yield Say(f"I run {_counted(len(found), 'command')}, one at a time.")
    results = []
    for command in found:
        outputs = yield from _run(Use(tool, {ARGUMENT_OF[tool]: command}), tools)
        results.append((command, outputs))
    yield Say(_summary(results))


policy = program(shell)


def commands(message: str) -> list[str]:
    """Return the commands of a message, in order."""
    fenced = _FENCED.findall(message)
    lines = _joined("\n".join(fenced) if fenced else message)
    marked = [command for line in lines if line.startswith("$ ") and (command := line[2:].strip())]
    return marked or [line for line in lines if fenced or not _SENTENCE.match(line)]


def _joined(text: str) -> list[str]:
    """Split into stripped lines, less the empty and the comments, with continued lines made one."""
    lines = (line.strip() for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _command_tool(tools: Tools) -> str | None:
    return next((name for name in ARGUMENT_OF if _offers(tools, name)), None)


def _offers(tools: Tools, name: str) -> bool:
    return any(tool.get("name") == name for tool in tools)


def _run(use: Use, tools: Tools) -> Generator[Use, Any, list[str]]:
    """Make the call and wait until its command has ended; all outputs on the way there."""
    outputs = [(yield use)]
    while _offers(tools, WAITING_TOOL) and len(outputs) <= MAX_WAITS:
        running = _STILL_RUNNING.search(_parted(outputs[-1])[0])
        if running is None:
            break
        wait = {"session_id": int(running[1]), "chars": "", "yield_time_ms": WAIT_MILLISECONDS}
        outputs.append((yield Use(WAITING_TOOL, wait)))
    return outputs


def _summary(results: Sequence[tuple[str, Sequence[str]]]) -> str:
    lines = [f"{_counted(len(results), 'command')} run:"]
    lines.extend(
        f"{number}. `{command}`: {_outcome(outputs)}" for number, (command, outputs) in enumerate(results, 1)
    )
    return "\n".join(lines)


def _outcome(outputs: Sequence[str]) -> str:
    """Say in a line how a command ended, as far as its tool tells in front of what the command wrote."""
    heads, bodies = zip(*map(_parted, outputs), strict=True)
    head, body = heads[-1], "".join(bodies)
    code = _EXIT_CODE.search(head)
    if code:
        ended = "ok" if int(code[1]) == 0 else f"exit code {code[1]}"
    else:
        ended = "still running" if _STILL_RUNNING.search(head) else "exit code unknown"
    first = next((line.strip() for line in body.splitlines() if line.strip()), "no output")
    return f"{ended}; {first}"


def _parted(output: str) -> tuple[str, str]:
    """Return the lines of the tool and those of the command, the same if nothing parts them."""
    mark = _BODY.search(output)
    return (output[: mark.start()], output[mark.end() :]) if mark else (output, output)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
