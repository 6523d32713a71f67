"""`suspended demo --model`: one rollout of a real model, run here, with three calls of tools and an answer.

A small model calls tools only when it is made to: the first three segments must be a call that fits a tool's schema, and
what follows must be text. What it calls, with which arguments, and what it says at the end is its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import attrs
import trio

from engine.backends.base import BackendError
from engine.backends.llama import LlamaBackend
from engine.client import RolloutRefusedError
from engine.client_forms import Form
from engine.config import Limits
from engine.engine import Engine, RolloutReport
from engine.local import local_client
from engine.recorder import TraceFile
from engine.samplers.registry import make_sampler
from engine.samplers.tokens import TokenSampler
from protocol import events
from protocol.events import ServerEvent
from protocol.items import FunctionCall

CALLS: Final = 3
SIZE: Final = "slots=1&context=2048"
ASKED: Final = f"forced_calls={CALLS}&max_tokens=80&temperature=0.7&seed=3"
INSTRUCTIONS: Final = "You help people who travel. Call tools, then answer in one short sentence."
QUESTION: Final = "I fly to Tokyo tomorrow. How is the weather there, and what time is it?"


def _tool(name: str, description: str, **members: str) -> Mapping[str, Any]:
    properties = {key: {"type": "string", "description": words} for key, words in members.items()}
    parameters = {"type": "object", "properties": properties, "required": list(members)}
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


TOOLS: Final = (
    _tool("get_weather", "The weather of a city.", city="the city's name"),
    _tool("get_time", "The local time of a city.", city="the city's name"),
)


@attrs.frozen(kw_only=True)
class RealSettings:
    """What to run, and how."""

    model: str
    sampler: TokenSampler
    limits: Limits
    form: Form
    trace: Path | None = None

    @classmethod
    def read(cls, model: str, form: Form, trace: Path | None) -> "RealSettings":
        """`model`: weights that were fetched, a .gguf file, or the URL of a llama.cpp server and `?tokenizer=` its vocabulary.

        `ValueError`: it cannot be run, and what to do.
        """
        is_url = model.startswith(("http://", "https://"))
        separator = "&" if "?" in model else "?"
        limits = Limits()
        try:
            sampler = make_sampler(
                f"llama:{model}{separator}{ASKED if is_url else f'{SIZE}&{ASKED}'}", limits
            )
        except ValueError as error:
            raise ValueError(str(error.__cause__ or error)) from error
        assert isinstance(sampler, TokenSampler), "llama is a kind of backend"
        return cls(model=model, sampler=sampler, limits=limits, form=form, trace=trace)


async def run_real(settings: RealSettings, out: TextIO) -> int:
    """Run it; 0 if the rollout completed, else 1. `OSError`: the model is not there, or cannot be loaded. A checkpoint."""
    reports = list[RolloutReport]()
    engine = Engine.make(settings.sampler, limits=settings.limits, on_report=reports.append)
    trace = TraceFile(settings.trace) if settings.trace is not None else None
    try:
        async with local_client(engine, form=settings.form, trace=trace) as client:
            await _wait_loaded(settings.sampler)
            print(f"you      {QUESTION}", file=out, flush=True)
            began = trio.current_time()
            async with client.rollout(
                model=settings.model,
                instructions=INSTRUCTIONS,
                input=QUESTION,
                tools=TOOLS,
                functions={"get_weather": _get_weather, "get_time": _get_time},
            ) as rollout:
                teller = _Teller(out)
                try:
                    async for event in rollout:
                        teller.tell(event)
                except RolloutRefusedError as error:
                    print(f"refused  {error}", file=out)
                    return 1
            seconds = trio.current_time() - began
    finally:
        if trace is not None:
            trace.close()
    status = rollout.response.status if rollout.response is not None else "failed"
    if status != "failed":  # what a model that failed had read nobody knows
        print(file=out)
        print(_summary(reports, seconds), file=out)
    return 0 if status == "completed" else 1


async def _wait_loaded(sampler: TokenSampler) -> None:
    assert isinstance(sampler.backend, LlamaBackend), "of llama's factory"
    try:
        await sampler.backend.start()
    except BackendError as error:
        raise OSError(f"--model: {error}") from error


async def _get_weather(city: str) -> str:
    await trio.lowlevel.checkpoint()
    return f"{city}: sunny, 20 degrees"


async def _get_time(city: str) -> str:
    await trio.lowlevel.checkpoint()
    return f"{city}: 9 in the morning"


class _Teller:
    """Prints what happens, the model's words as they come."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._talks = False

    def tell(self, event: ServerEvent) -> None:
        match event:
            case events.ResponseCreated(response):
                self._line(f"response {response.id[:13]}…")
            case events.OutputItemDone(item=FunctionCall(name=name, arguments=arguments)):
                self._line(f"model    calls {name} with {' '.join(arguments.split())}")
            case events.ResponseDone():
                self._line("         suspended: the tool runs here, and the model's state stays where it is")
            case events.OutputTextDelta(delta=delta):
                self._say(delta)
            case events.ResponseFailed(response):
                why = f": {response.error.message}" if response.error is not None else ""
                self._line(f"         {response.status}{why}")
            case events.ResponseCompleted() | events.ResponseIncomplete():
                self._line(f"         {event.response.status}")

    def _say(self, delta: str) -> None:
        print(delta if self._talks else f"model    {delta}", end="", file=self._out, flush=True)
        self._talks = True

    def _line(self, line: str) -> None:
        print(f"\n{line}" if self._talks else line, file=self._out, flush=True)
        self._talks = False


def _summary(reports: list[RolloutReport], seconds: float) -> str:
    read = sum(report.usage.uncached_input_tokens for report in reports)
    reused = sum(report.usage.cached_input_tokens for report in reports)
    said = sum(report.usage.output_tokens for report in reports)
    drift = sum(report.hooks.get("drift", 0) for report in reports)
    responses = f"{len(reports)} response{'s' if len(reports) != 1 else ''}"
    lines = [
        f"{responses}, {seconds:.1f} s; the model read {read:,} tokens, kept {reused:,} warm, wrote {said:,}",
        *(
            [
                f"{drift} times a turn of it came back spelled otherwise, and was put back as it had been sampled"
            ]
            if drift
            else []
        ),
    ]
    return "\n".join(lines)
