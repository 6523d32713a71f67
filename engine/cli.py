"""The command `suspended`: what a person says, turned into values, and what came of it, turned into an exit code.

The only module that reads the environment, the terminal and signals; everything below it gets values.
Nothing heavy is imported before it is known what is wanted, so that `--help` is there at once.
"""

import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from engine.arguments import DEFAULT_KEY_VARIABLE, make_parser

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

Job = Callable[[], Awaitable[int]]


class UsageError(Exception):
    """The command line, a file or a variable it names is wrong; the message says what to write instead."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Raises nothing that a person could have caused."""
    try:
        arguments = make_parser().parse_args(argv)
        return _COMMANDS[arguments.command](arguments)
    except SystemExit as exit_:  # argparse has said what is wrong, or has helped
        return exit_.code if isinstance(exit_.code, int) else USAGE
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except UsageError as error:
        return _complain(str(error), USAGE)
    except (OSError, ExceptionGroup) as error:
        from engine.nursery import leaves  # noqa: PLC0415  # see the head of this module

        problems = list(leaves(error))
        if any(isinstance(problem, BrokenPipeError) for problem in problems):
            # whoever reads our output has enough; without this Python complains when it flushes
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        if not all(isinstance(problem, OSError) for problem in problems):
            raise
        return _complain("; ".join(map(str, problems)), FAILED)


def _complain(message: str, code: int) -> int:
    print(f"suspended: {message}", file=sys.stderr)
    return code


# --- the commands ------------------------------------------------------------------------------------------------------


def _demo(arguments: Namespace) -> int:
    from demos.live.run import DemoSettings, run_demo  # noqa: PLC0415  # see the head of this module

    if arguments.model is not None:
        return _real_demo(arguments)
    if arguments.project is not None and not arguments.project.is_dir():
        raise UsageError(f"--project: {str(arguments.project)!r} is no folder")
    plain = arguments.plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    settings = DemoSettings(
        form=arguments.form,
        rate=arguments.rate,
        project=arguments.project,
        trace=_writable("--trace", arguments.trace),
        json=_writable("--json", arguments.json),
        plain=plain,
        colour=not plain and not os.environ.get("NO_COLOR"),
    )
    return _run(lambda: run_demo(settings))


def _real_demo(arguments: Namespace) -> int:
    from demos.live.real import RealSettings, run_real  # noqa: PLC0415  # see the head of this module

    for flag, value in (("--project", arguments.project), ("--json", arguments.json)):
        if value is not None:
            raise UsageError(
                f"{flag}: the demo of a real model (--model) repairs nothing; leave one of them out"
            )
    try:
        settings = RealSettings.read(
            arguments.model, arguments.form, trace=_writable("--trace", arguments.trace)
        )
    except ValueError as error:
        raise UsageError(f"--model: {error}") from error
    return _run(lambda: run_real(settings, sys.stdout))


def _serve(arguments: Namespace) -> int:
    from engine import collector  # noqa: PLC0415  # see the head of this module
    from engine.serve_command import ServeSettings, serve  # noqa: PLC0415  # see the head of this module

    sys.path.insert(0, str(Path.cwd()))  # a sampler's or tool's module is usually one of the user's own
    try:
        settings = ServeSettings.read(
            arguments, key=_key(arguments.key_env), trace=_writable("--trace", arguments.trace)
        )
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    _log_to_stderr()
    collector.settle()
    return _run_trio(lambda: _with_signals(lambda signals: serve(settings, signals, _say)))


def _call(arguments: Namespace) -> int:
    from engine.call_command import CallSettings, call  # noqa: PLC0415  # see the head of this module

    try:
        settings = CallSettings.read(
            arguments,
            prompt=sys.stdin.read() if arguments.prompt == "-" else arguments.prompt,
            key=_key(arguments.key_env),
            environment=os.environ,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    return _run(lambda: call(settings, sys.stdout, sys.stderr))


def _check(arguments: Namespace) -> int:
    from engine.check.command import CheckSettings, check  # noqa: PLC0415  # see the head of this module

    plain = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    try:
        if arguments.list or arguments.explain is not None:
            from engine.check.rule_pages import page, table  # noqa: PLC0415  # see the head of this module

            _say(table() if arguments.list else page(arguments.explain))
            return OK
        settings = CheckSettings.read(arguments, colour=not plain, progress=sys.stderr.isatty())
    except ValueError as error:
        raise UsageError(str(error)) from error
    stdin = getattr(sys.stdin, "buffer", None)  # none if it was closed before we began
    code = check(settings, stdin, sys.stdout, sys.stderr)
    return code if code != INTERRUPTED else _complain("interrupted", INTERRUPTED)


def _tap(arguments: Namespace) -> int:
    from engine.tap.command import TapSettings, tap  # noqa: PLC0415  # see the head of this module

    plain = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    try:
        settings = TapSettings.read(arguments, colour=not plain)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    _log_to_stderr()
    return _run_trio(lambda: _with_signals(lambda signals: tap(settings, signals, _say)))


def _model(arguments: Namespace) -> int:
    from engine.model_command import ModelSettings, model  # noqa: PLC0415  # see the head of this module

    try:
        settings = ModelSettings.read(
            arguments, environment=os.environ, home=Path.home(), progress=sys.stderr.isatty()
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    return model(settings, sys.stdout, sys.stderr)


def _models(arguments: Namespace) -> int:
    from engine.models_command import models  # noqa: PLC0415  # see the head of this module

    try:
        return models(arguments.models, sys.stdout)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _lab(arguments: Namespace) -> int:
    from demos.lab.command import Terminal, lab  # noqa: PLC0415  # see the head of this module

    plain = not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    return lab(arguments.arguments, Terminal(out=sys.stdout, err=sys.stderr, plain=plain))


_COMMANDS: Mapping[str, Callable[[Namespace], int]] = {
    "demo": _demo,
    "serve": _serve,
    "call": _call,
    "check": _check,
    "tap": _tap,
    "model": _model,
    "models": _models,
    "lab": _lab,
}


def _key(named: str | None) -> str | None:
    key = os.environ.get(named or DEFAULT_KEY_VARIABLE) or None
    if named is not None and key is None:
        raise UsageError(f"--key-env: the variable {named!r} is not set, or empty")
    return key


def _writable(flag: str, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the work is done, not after it."""
    if path is not None:
        try:
            path.open("ab").close()
        except OSError as error:
            raise UsageError(f"{flag}: {error}") from error
    return path


def _say(line: str) -> None:
    print(line, flush=True)


class _OneLine(logging.Formatter):
    """A record is a line, and its traceback lines that begin with a bar: text from outside cannot forge another (T25)."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base class's name
        from engine.server import printable  # noqa: PLC0415  # see the head of this module

        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        from engine.server import printable  # noqa: PLC0415

        return "\n".join(f"  | {printable(line)}" for line in super().formatException(ei).splitlines())  # type: ignore[arg-type]


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("engine").setLevel(logging.INFO)


# --- signals -----------------------------------------------------------------------------------------------------------


def _run_trio(main_task: Job) -> int:
    import trio  # noqa: PLC0415  # see the head of this module

    return trio.run(main_task)


def _run(job: Job) -> int:
    """Run a job until it ends or a signal comes; then everything it started is cancelled and cleaned up."""
    code = _run_trio(lambda: _with_signals(lambda signals: _until(job, signals)))
    return code if code != INTERRUPTED else _complain("interrupted", INTERRUPTED)


async def _with_signals(task: Callable[[AsyncIterator[int]], Awaitable[int]]) -> int:
    import trio  # noqa: PLC0415  # see the head of this module

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        return await task(signals)


async def _until(job: Job, signals: AsyncIterator[int]) -> int:
    import trio  # noqa: PLC0415  # see the head of this module

    code = INTERRUPTED

    async def run() -> None:
        nonlocal code
        code = await job()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        async for _ in signals:
            nursery.cancel_scope.cancel()
    return code
