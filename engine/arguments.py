"""What may be said to `suspended`, and the help that teaches it. Imports nothing heavy: `--help` is there at once."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from engine import model_arguments
from engine.check import arguments as check_arguments
from engine.command_parser import CommandParser
from engine.pointers import DEFAULT_PLACE, pointed
from engine.tap import arguments as tap_arguments

DEFAULT_KEY_VARIABLE: Final = "SUSPENDED_API_KEY"
FORMS: Final = {
    "append": "one response; it says response.done at a call, response.append brings the outputs (the prototype)",
    "inject": "one response; it stays open, response.inject brings each output when it is there (the public beta)",
    "create": "a response for each round of calls; response.create with previous_response_id brings the outputs",
    "http": "the same over HTTP, streamed; each request brings the whole history, and nothing is stored",
}
"""The forms of `engine.client_forms`, for those who read the help. The first one is the default."""

_FORM_LINES = "\n".join(f"  {name:6}  {words}" for name, words in FORMS.items())


def _codes(
    failed: str, *, done: str = "it worked", wrong: str = "wrong usage", left: str = "interrupted"
) -> str:
    """The exit codes of a command, of which `failed` says what is not its own fault."""
    return f"""\
exit codes:
  0    {done}
  1    {failed}
  2    {wrong}
  130  {left}
"""


_MAIN_EPILOG = f"""\
examples:
  suspended demo                                  watch an agent repair a program in one suspended response
  suspended serve --sampler policy:demos.agents.shell
  suspended call http://127.0.0.1:8080/v1 'say hello'
  suspended check trace.jsonl

{_codes("it did not work out; a command's own help says what that is, and what else there is")}"""

_DEMO_EPILOG = f"""\
A small project with a bug or two is copied to a temporary folder. An agent repairs it: its tools (list, read and write
files, run the tests) run here, in the client; the "model" is a program that searches for the repair, at a model's pace.
In the append and inject forms all of it happens inside of one response, which suspends at each tool call and goes on
when the output is there. In the other two, which the world uses today, each call ends a response and its output starts
the next one: the same agent, the same files; compare the tables at the end, and what the client sends.

forms:
{_FORM_LINES}

examples:
  suspended demo                          one response, in the append form
  suspended demo --form inject            one response, in the other form of this idea
  suspended demo --form http              a response for each round of calls, the whole history sent each time
  suspended demo --project ./mine         your project; it is copied, the original is never changed, but its tests
                                          are run, with your rights
  suspended demo --plain --trace t.jsonl  a line for each thing; every frame, both ways, in a file
  suspended demo --model smollm2          real tokens of a small model, run here: suspended model fetch smollm2

{_codes("tests still fail, or the rollout failed; with --model also: the model cannot be loaded")}"""

_SERVE_EPILOG = f"""\
The key clients must show is read from {DEFAULT_KEY_VARIABLE}, or from the variable that --key-env names.
Without a key only loopback addresses are served. SIGTERM or Ctrl-C drains: suspended responses end at once, sampling
ones get --limit drain_seconds; a second Ctrl-C stops at once.

samplers (modules are looked for in the current folder, too):
  paced                                a simulated model that calls the tools it is offered; the default
  paced:rate=1000,first=0.02,calls=5   the same, with its numbers
  policy:demos.agents.shell            a program in the place of the model, at a model's pace
  policy:demos.agents.repair?rate=500  the same, with its numbers
  scripted:module:NAME                 exact steps from Python
  llama:smollm2                        a real model, run here: weights that were fetched, or a .gguf file
  llama:http://127.0.0.1:8081?format=chatml&tokenizer=qwen3    one in a llama.cpp server; its vocabulary must be named
  vllm:http://127.0.0.1:8000?model=NAME&format=harmony         one in a vLLM server, by tokens
  chat:http://127.0.0.1:11434/v1?model=NAME                    any chat-completions endpoint; nothing warm is promised

examples:
  suspended serve --port 0 --sampler policy:demos.agents.shell
  {DEFAULT_KEY_VARIABLE}=… suspended serve --host 0.0.0.0 --limit max_connections=100 --trace all.jsonl

{_codes("it cannot listen, or a model cannot be loaded", done="drained", left="interrupted, by a second signal")}"""

_CALL_EPILOG = f"""\
A tool is a command for the shell. It gets the call's arguments as one JSON object on its standard input, and each
argument as a variable: $ARG_path for "path"; $CALL_ID is the call's id, the same if a call should ever be run twice.
What it prints is the tool's output; if it fails, its exit code is added. Mind who chooses the arguments: quote them.

  --tool 'name=command'        one argument, "input"
  --tool 'name(a, b)=command'  arguments "a" and "b", both text

forms (tools and answer are the same in each):
{_FORM_LINES}

examples:
  suspended call http://127.0.0.1:8080/v1 'what time is it?' --tool 'now()=date'
  suspended call ws://127.0.0.1:8080/v1/responses --form inject --tool 'read(path)=cat -- "$ARG_path"' - <prompt.txt
  suspended call http://127.0.0.1:8080/v1 --form http 'say hello'
  suspended call http://127.0.0.1:8080/v1 '$ ls' --tool 'exec_command(cmd)=sh -c "$ARG_cmd"'

The answer goes to standard output as it comes, calls and outputs to standard error.

{_codes("the rollout failed, or was refused")}"""


def make_parser() -> ArgumentParser:
    """The parser of all commands; `command` is the name of the one that was given."""
    parser = ArgumentParser(
        prog="suspended",
        description="An agent rollout as one response that suspends at each tool call.",
        epilog=_MAIN_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(
        title="commands",
        metavar="demo | serve | call | check | tap | model | models | lab",
        required=True,
        parser_class=CommandParser,
    )
    for add, epilog, summary in (
        (_add_demo, _DEMO_EPILOG, "watch an agent repair a program in one suspended response"),
        (_add_serve, _SERVE_EPILOG, "serve the engine by WebSocket and HTTP"),
        (
            _add_call,
            _CALL_EPILOG,
            "run one rollout against any server of the Responses API, in one of four forms",
        ),
        (_add_check, check_arguments.EPILOG, check_arguments.SUMMARY),
        (_add_tap, tap_arguments.EPILOG, tap_arguments.SUMMARY),
        (_add_model, model_arguments.MODEL_EPILOG, model_arguments.MODEL_SUMMARY),
        (_add_models, model_arguments.MODELS_EPILOG, model_arguments.MODELS_SUMMARY),
        (_add_lab, "", "measure the same rollout in every form, and explain the difference"),
    ):
        add(
            commands.add_parser(
                add.__name__.removeprefix("_add_"),
                help=summary,
                description=f"{summary[0].upper()}{summary[1:]}.",
                epilog=epilog,
                formatter_class=RawDescriptionHelpFormatter,
            )
        )
    return parser


def _add_demo(parser: CommandParser) -> None:
    add = parser.add_argument
    _add_form(parser)
    add(
        "--rate",
        type=_positive,
        default=700.0,
        metavar="N",
        help="tokens per second of the agent (default: 700)",
    )
    add(
        "--project",
        type=Path,
        metavar="DIR",
        help="repair a copy of this folder instead of the built-in project",
    )
    add(
        "--model",
        metavar="NAME",
        help="a real model instead: smollm2, a .gguf file, or the URL of a llama.cpp server; it travels to Tokyo",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write every frame and what happened between them (JSON lines)",
    )
    add("--json", type=Path, metavar="FILE", help="write what was measured")
    add(
        "--plain",
        action="store_true",
        help="a line for each thing, no colour; so it is too without a terminal",
    )
    parser.set_defaults(command="demo")


def _add_serve(parser: CommandParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to bind (default: 127.0.0.1)")
    add("--port", type=_port, default=8080, help="port to bind, 0 for any free one (default: 8080)")
    add(
        "--sampler",
        default="paced",
        metavar="SPEC",
        help="what stands for the model; see below (default: paced)",
    )
    add("--models", type=Path, metavar="FILE", help="TOML file of the models to serve (default: any name)")
    add(
        "--hosted",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="HostedTool objects to run in the server",
    )
    add("--key-env", metavar="NAME", help=f"variable that holds the key (default: {DEFAULT_KEY_VARIABLE})")
    add("--trace", type=Path, metavar="FILE", help="write every connection in the trace format (JSON lines)")
    add(
        "--store",
        type=Path,
        metavar="FILE",
        help="keep responses and their usage in this SQLite file (default: in memory)",
    )
    add(
        "--http-variant",
        choices=("optimised", "naive"),
        default="optimised",
        help="over HTTP: keep what a history was rendered and read to, for the next request that begins with it, or, "
        "to compare, do all work for the whole history each time (default: optimised)",
    )
    add(
        "--kv-policy",
        choices=("keep", "drop", "ttl", "min-waste", "decay"),
        default="min-waste",
        help="whose model state stays in memory while its tools run, where a model has a budget: its own, or "
        "--limit kv_tokens (default: min-waste)",
    )
    add(
        "--no-websocket",
        dest="websocket",
        action="store_false",
        help="refuse upgrades with 426: clients that can go on over HTTP",
    )
    add("--limits", type=Path, metavar="FILE", help="TOML file of limits")
    add(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one limit; may be given several times",
    )
    parser.more = _clients_and_limits
    parser.set_defaults(command="serve")


def _add_call(parser: CommandParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", help="http(s)://host:port/v1, or ws(s)://host:port/v1/responses")
    add("prompt", metavar="PROMPT", help="what to ask; - reads it from standard input")
    _add_form(parser)
    add("--model", default="default", help="the model's name (default: default)")
    add(
        "--tool",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="offer a command as a tool; see below",
    )
    add(
        "--tool-timeout",
        type=_positive,
        default=60.0,
        metavar="SECONDS",
        help="a command that runs longer is killed (default: 60)",
    )
    add("--key-env", metavar="NAME", help=f"variable that holds the key (default: {DEFAULT_KEY_VARIABLE})")
    add(
        "--json",
        action="store_true",
        help="print each response as a line of JSON instead of the text; in the append and inject forms there is one",
    )
    parser.set_defaults(command="call")


def _add_check(parser: CommandParser) -> None:
    check_arguments.add_check(parser)


def _add_tap(parser: CommandParser) -> None:
    tap_arguments.add_tap(parser)


def _add_model(parser: CommandParser) -> None:
    model_arguments.add_model(parser)


def _add_models(parser: CommandParser) -> None:
    model_arguments.add_models(parser)


def _add_lab(parser: CommandParser) -> None:
    parser.reads_its_own = True


def _add_form(parser: CommandParser) -> None:
    default = next(iter(FORMS))
    parser.add_argument(
        "--form", choices=tuple(FORMS), default=default, help=f"how to speak; see below (default: {default})"
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


_positive.__name__ = "positive number"  # argparse shows it: "invalid positive number value: '0'"


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise ValueError(text)
    return value


_port.__name__ = "port"


def _clients_and_limits() -> str:
    clients = [f"  {line}".rstrip() for line in pointed(DEFAULT_PLACE)]
    return "\n".join(["clients, each with its lines:", *clients, _limit_table()])


def _limit_table() -> str:
    from engine.limit_settings import limit_rows  # noqa: PLC0415  # see the head of this module

    rows = limit_rows()
    width = max(len(row.name) for row in rows)
    lines = [f"  {row.name:{width}}  {row.default:>9}  {row.reason}".rstrip() for row in rows]
    return "\n".join(["limits, with their defaults:", *lines, ""])


def _version() -> str:
    try:
        return version("suspended-response")
    except PackageNotFoundError:  # run from a checkout
        return "unreleased"
