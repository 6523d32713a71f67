"""The shell policy: which commands it finds, how it calls, what it says of the outcome."""

import json

import pytest

from demos.agents.conversation import Conversation
from demos.agents.shell import MAX_WAITS, commands, policy
from engine.samplers.policy import Say, Use
from protocol.items import FunctionCall, FunctionCallOutput, InputText, Message

EXEC = {"type": "function", "name": "exec_command", "parameters": {"type": "object"}}
SHELL = {"type": "function", "name": "shell_command", "parameters": {"type": "object"}}
OTHER = {"type": "web_search", "external_web_access": True}

FROM_CODEX = (
    Message("developer", (InputText("<permissions instructions> $ rm -r everything"),)),
    Message(
        "user",
        (
            InputText("# AGENTS.md instructions for /repo\n\n$ make dangerous\n"),
            InputText(
                "<environment_context>\n  <cwd>/repo</cwd>\n  <shell>bash</shell>\n</environment_context>"
            ),
        ),
    ),
    Message("user", (InputText("Please run:\n```sh\necho a > a.txt\ncat a.txt\n```"),)),
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("echo hi", ["echo hi"]),
        ("ls\n\npwd\n", ["ls", "pwd"]),
        ("Please do this:\n$ ls -l\n  $ pwd\nand tell me.", ["ls -l", "pwd"]),
        ("Run\n```sh\necho 1\n# a comment\necho 2\n```\nthen stop.", ["echo 1", "echo 2"]),
        ("```\n$ echo 1\n1\n$ echo 2\n```", ["echo 1", "echo 2"]),
        ("```\none\n```\nand\n```\ntwo\n```", ["one", "two"]),
        ("```\necho a \\\n  b\n```", ["echo a b"]),
        ("Run these commands, please:\nmake test\nls ..\n", ["make test", "ls .."]),
        ("CC=gcc make", ["CC=gcc make"]),
        ("Hello there.", []),
        ("How are you?\nfine, i hope.", []),
        ("", []),
    ],
)
def test_commands_of_a_message(message, expected):
    """Fenced blocks first, then `$ ` lines, then all lines that are no sentences."""
    assert commands(message) == expected


def test_first_segment_for_codex():
    """Of Codex's messages only the last one counts; its first command is called, and only that."""
    assert policy(FROM_CODEX, [OTHER, EXEC, SHELL]) == [
        Say("I run 2 commands, one at a time."),
        Use("exec_command", {"cmd": "echo a > a.txt"}),
    ]


def test_next_segment_for_codex():
    """After an output the next command is called, and nothing is said again."""
    call = FunctionCall("call_1", "exec_command", '{"cmd":"echo a > a.txt"}')
    output = FunctionCallOutput("call_1", "Exit code: 0\nWall time: 0 seconds\nOutput:\n")
    assert policy((*FROM_CODEX, call, output), [EXEC]) == [Use("exec_command", {"cmd": "cat a.txt"})]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("Exit code: 0\nWall time: 0 seconds\nOutput:\nhi\nthere\n", "ok; hi"),
        (
            "Chunk ID: a1\nWall time: 0.1 seconds\nProcess exited with code 2\nOutput:\nno file\n",
            "exit code 2; no file",
        ),
        ("Wall time: 1 seconds\nProcess running with session ID 7\nOutput:\n", "still running; no output"),
        ("Exit code: 0\nOutput:\nExit code: 3\n", "ok; Exit code: 3"),
        ("Process exited with code 0\nOutput:\nTotal output lines: 900\n\n1\n2\n", "ok; 1"),
        ("just text", "exit code unknown; just text"),
        ("", "exit code unknown; no output"),
    ],
)
async def test_summary(output, expected):
    """The last message says of each command how it ended and the first line it wrote."""

    async def exec_command(cmd: str) -> str:
        assert cmd == "make"
        return output

    conversation = Conversation()
    await conversation.run(policy, "$ make", {"exec_command": exec_command}, [EXEC])
    assert conversation.final_text == f"1 command run:\n1. `make`: {expected}"


async def test_a_long_command_is_waited_for():
    """While a command still runs its session is polled; what it wrote is put together and its end is told."""
    polls = []

    async def exec_command(cmd: str) -> str:
        return "Process running with session ID 7\nOutput:\n\n"

    async def write_stdin(session_id: int, chars: str, yield_time_ms: int) -> str:
        polls.append((session_id, chars))
        if len(polls) < 3:
            return "Process running with session ID 7\nOutput:\nhalf\n"
        return "Process exited with code 4\nOutput:\nProcess running with session ID 8\n"

    conversation = Conversation()
    functions = {"exec_command": exec_command, "write_stdin": write_stdin}
    await conversation.run(policy, "$ make", functions, [EXEC, {"type": "function", "name": "write_stdin"}])
    assert polls == [(7, "")] * 3
    assert conversation.final_text == "1 command run:\n1. `make`: exit code 4; half"


async def test_a_command_without_end_is_waited_for_only_so_long():
    """After the last wait the next command has its turn."""
    commands_run, polls = [], []

    async def exec_command(cmd: str) -> str:
        commands_run.append(cmd)
        return "Process running with session ID 7\nOutput:\n" if cmd == "yes" else "Exit code: 0\nOutput:\n"

    async def write_stdin(**arguments: object) -> str:
        polls.append(arguments)
        return "Process running with session ID 7\nOutput:\n"

    conversation = Conversation()
    functions = {"exec_command": exec_command, "write_stdin": write_stdin}
    await conversation.run(
        policy, "$ yes\n$ no", functions, [EXEC, {"type": "function", "name": "write_stdin"}]
    )
    assert (len(polls), commands_run) == (MAX_WAITS, ["yes", "no"])
    assert conversation.final_text.splitlines()[1:] == [
        "1. `yes`: still running; no output",
        "2. `no`: ok; no output",
    ]


async def test_commands_run_one_at_a_time():
    """Five commands are five calls in order, each made when the one before is answered."""
    order = []

    async def exec_command(cmd: str) -> str:
        order.append(cmd)
        return f"Exit code: 0\nOutput:\n{len(order)}\n"

    conversation = Conversation()
    prompt = "\n".join(f"$ touch {name}" for name in "abcde")
    await conversation.run(policy, prompt, {"exec_command": exec_command}, [EXEC])
    assert order == [f"touch {name}" for name in "abcde"]
    kinds = [type(item).__name__ for item in conversation.items]
    assert kinds == ["Message", "Message", *["FunctionCall", "FunctionCallOutput"] * 5, "Message"]
    assert conversation.final_text.splitlines()[-1] == "5. `touch e`: ok; 5"


def test_other_tool_has_another_argument():
    """Without `exec_command`, `shell_command` is called by its own argument."""
    moves = policy((Message("user", "$ ls"),), [OTHER, SHELL])
    assert moves[-1] == Use("shell_command", {"command": "ls"})


@pytest.mark.parametrize(
    ("message", "tools", "expected"),
    [("$ ls", [OTHER], "I can run no commands"), ("Hello.", [EXEC], "I found no command")],
)
def test_what_cannot_be_done_is_said(message, tools, expected):
    """Without a tool or a command there is no call, and a sentence that says why."""
    (only,) = policy((Message("user", message),), tools)
    assert only.text.startswith(expected)


def test_second_prompt_begins_anew():
    """A new user message has its own commands; those before are history."""
    call = FunctionCall("call_1", "exec_command", json.dumps({"cmd": "ls"}))
    items = (Message("user", "$ ls"), call, FunctionCallOutput("call_1", ""), Message("user", "$ pwd"))
    assert policy(items, [EXEC])[-1] == Use("exec_command", {"cmd": "pwd"})
