"""What a turn costs as the history grows: the create form against HTTP, with and without a memory between requests.

Workload: one conversation of 30 tool calls, 50 sampled tokens a turn; its context grows from 10,000 to 55,000 tokens.
The opening holds instructions (2,000 tokens), ten tools and a long message; each output of a tool has 1,425 tokens.

*naive HTTP*: keep-alive, streams, the whole history in each request; nothing is remembered between requests.
*half-naive HTTP*: the same, but schemas of tools are remembered, so that what the history alone costs is seen.
Looking at schemas was half of naive's time until it took microseconds; the target for *create* is older than that.
*optimised HTTP*: the same requests to a server that recognises histories by their content (`engine.prefix_cache`).
*create*: one WebSocket; each turn names the response before and brings the output, and repeats instructions and tools.
*append*: one WebSocket, one response; each turn brings the output and nothing else.
*create again*: the A/A run; its ratio to *create* shows what the noise is.

The model is paced: 1,000 tokens/s, 20 ms to the first token. Prefill takes no time, so that a server that sends the model
its whole history does not pay for a clock that ticks longer. The ticks and the sends of a paced turn are in every form's
figures; *flood*, without a target, is the same with all tokens at once, so that the forms' own work is seen.

CPU time is that of the server process (user and system), read from outside, 10 ms after the end of each turn.
The opening, with its handshake and the first 10,000 tokens, is shown apart and is no turn.
*First* and *last* are means of five turns of a round; the medians of the rounds are shown, and ratios are taken inside a
round. A round holds each form once, in random order, with new texts, the same for all; the first round warms up.
Each form has a server of its own in the one process, with the same engine, stages, sampler and encoder, and the same
tokenizer and classifier: naive HTTP is spared what slower ones would cost. Its connections are counted.

The counters are the engine's own, for one whole conversation with its opening. *digested items* is the price of the
optimised variant: it hashes a history from its beginning to recognise it.
The stages are the engine's ledgers, in wall time; what is read of HTTP before the rollout exists is in *other*.

Collector: default, a full collection before each conversation. Store: in memory, `store: false`, so usage rows only.
Not measured: TLS, a network, a prefix cache of the model's own, many conversations at once.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs
import trio

from engine import vocabulary
from engine.config import Limits
from engine.engine import Engine, RolloutReport
from engine.samplers.base import Appended, CallEnd, CallInput, CallStart, End, Part, Prompt, Steps, Text
from engine.samplers.paced import Pace, Paced
from engine.server import Server
from protocol.items import OUTPUTS
from tests.bench.callers import (
    CALLS,
    FIRST_TOKENS,
    LAST_TOKENS,
    MODEL,
    AppendCaller,
    CreateCaller,
    HttpCaller,
    MakeCaller,
    conversation,
)
from tests.bench.growth import call_id
from tests.bench.harness import ServerProcess, Spread, Verdicts, in_blocks, is_quick, ratio, server_process

TURN_TOKENS: Final = 50
ENDS: Final = 5
"""Turns of the beginning and of the end that are compared."""
FLAT_BOUND: Final = 1.1
NAIVE_BOUND: Final = 1 / 4
SETTLE_SECONDS: Final = 0.01
ARGUMENTS: Final = '{"path":"README.md"}'
WORD: Final = " token"
"""One token of the vocabulary."""
PACES: Final[Mapping[str, Pace]] = {
    "paced": Pace(tokens_per_second=1e3, first_token_seconds=0.02, prefill_tokens_per_second=1e12),
    "flood": Pace(tokens_per_second=1e12, first_token_seconds=0.0, prefill_tokens_per_second=1e12),
}
COUNTED: Final = ("rendered_tokens", "classified_characters", "validated_items", "read_tools")
STAGES: Final = ("decode", "validate", "render", "classify", "encode", "send", "other")


@attrs.define(kw_only=True)
class HalfNaive(Engine):
    """Does all work with each request, but for the tools."""

    def forgetful(self) -> Engine:
        """Itself, with its memory."""
        return self


FORMS: Final[Mapping[str, tuple[MakeCaller, type[Engine], str]]] = {
    "naive HTTP": (HttpCaller, Engine, "naive"),
    "half-naive HTTP": (HttpCaller, HalfNaive, "naive"),
    "optimised HTTP": (HttpCaller, Engine, "optimised"),
    "create": (CreateCaller, Engine, "optimised"),
    "append": (AppendCaller, Engine, "optimised"),
}
"""Each form's client, and its engine with its variant of HTTP."""
COMPARED: Final = (
    ("create", "naive HTTP"),
    ("create", "half-naive HTTP"),
    ("create", "optimised HTTP"),
    ("append", "create"),
    ("create again", "create"),
)


# --- the server process --------------------------------------------------------------------------------------------


class Looker:
    """Calls a tool as often as its name says, then answers; always the same number of tokens."""

    def open(self, prompt: Prompt) -> "_Looking":
        """Start a rollout."""
        return _Looking(int(prompt.model.removeprefix(f"{MODEL}-")))


class _Looking:
    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._outputs = 0

    async def sample(self, appended: Appended) -> Steps:
        self._outputs += sum(isinstance(item, OUTPUTS) for item in appended.items)
        await trio.lowlevel.checkpoint()
        yield _words(self._outputs) if self._outputs < self._calls else (Text(WORD * TURN_TOKENS), End())

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _words(number: int) -> Sequence[Part]:
    call = (CallStart(0, "look0", call_id=call_id(number)), CallInput(0, ARGUMENTS), CallEnd(0))
    words = TURN_TOKENS - 1 - len(vocabulary.encode(ARGUMENTS))
    return Text(WORD * words), *call, End()


@attrs.define
class Served:
    """One form's server, and what its rollouts reported since somebody asked."""

    server: Server
    reports: list[RolloutReport]
    _digested_items: int = 0

    def told(self) -> dict[str, dict[str, float]]:
        """The counters of the rollouts since the last time, and the milliseconds of their stages."""
        for report in self.reports:
            assert report.usage.output_tokens == TURN_TOKENS * report.usage.segments, report.usage
        work: dict[str, float] = {name: sum(report.work[name] for report in self.reports) for name in COUNTED}
        stages = {name: sum(report.ledger.stages[name] for report in self.reports) / 1e6 for name in STAGES}
        self.reports.clear()
        digested = self.server.prefixes.statistics().digested_items
        work["digested_items"] = digested - self._digested_items
        self._digested_items = digested
        return {"work": work, "stages": stages}


async def start(nursery: trio.Nursery, _options: Any) -> Mapping[str, Callable[..., Any]]:
    """A server for each form and pace, all in one process."""
    served, ports = {}, {}
    for pace_name, pace in PACES.items():
        for form, (_, make, variant) in FORMS.items():
            limits, reports = Limits(), list[RolloutReport]()
            sampler = Paced(Looker(), pace, tick_seconds=limits.tick_seconds)
            engine = make.make(sampler, limits=limits, on_report=reports.append, http_variant=variant)
            served[pace_name, form] = one = Served(Server(engine), reports)
            listeners = await nursery.start(one.server.run)
            ports[pace_name, form] = listeners[0].socket.getsockname()[1]
    return {
        "port": lambda pace, form: ports[pace, form],
        "told": lambda pace, form: served[pace, form].told(),
        "http_accepted": lambda pace, form: served[pace, form].server.statistics().http_accepted,
    }


# --- measuring -----------------------------------------------------------------------------------------------------


class Conversations:
    """Conversations in one form, round after round."""

    def __init__(self, server: ServerProcess, pace: str, form: str, calls: int) -> None:
        self._server = server
        self._way = (pace, form)
        self._make_caller = FORMS[form][0]
        self._calls = calls
        self._port: int = server.ask("port", *self._way)
        self._openings: list[float] = []
        self._turns: list[list[float]] = []
        """CPU milliseconds of the server, round by round and turn by turn; the first round warmed up."""
        self.told: dict[str, dict[str, float]] = {}
        """Of the last round."""

    def run(self) -> float:
        """One conversation; the mean of its turns."""
        talk = conversation(len(self._turns), self._calls)
        self._server.ask("told", *self._way)
        self._server.ask("collect")
        time.sleep(SETTLE_SECONDS)
        readings = [self._server.read_cpu_seconds()]
        caller = self._make_caller(self._port, talk.settings)
        for item in talk.items:
            caller.say(item)
            time.sleep(SETTLE_SECONDS)
            readings.append(self._server.read_cpu_seconds())
        caller.close()
        self.told = self._server.ask("told", *self._way)
        opening, *turns = [(after - before) * 1e3 for before, after in pairwise(readings)]
        self._openings.append(opening)
        self._turns.append(turns)
        return statistics.mean(turns)

    @property
    def opening(self) -> float:
        """The median of the openings."""
        return statistics.median(self._openings[1:])

    def means(self, part: slice) -> list[float]:
        """The mean of some turns, round by round."""
        return [statistics.mean(turns[part]) for turns in self._turns[1:]]


class Comparison:
    """All forms at one pace."""

    def __init__(self, server: ServerProcess, pace: str, *, calls: int, ends: int) -> None:
        self._runs = {form: Conversations(server, pace, form, calls) for form in FORMS}
        self._runs["create again"] = Conversations(server, pace, "create", calls)
        self._parts = {"first": slice(0, ends), "last": slice(-ends, None), "all": slice(None)}
        self._calls = calls
        self._pace = pace

    def measure(self, blocks: int) -> None:
        """The rounds."""
        in_blocks({name: run.run for name, run in self._runs.items()}, blocks)

    def growth(self, form: str) -> Spread:
        """The last turns in units of the first ones, round by round."""
        ends = {part: self._runs[form].means(self._parts[part]) for part in ("first", "last")}
        return ratio(ends, "last", "first")

    def between(self, form: str, to: str, part: str = "all") -> Spread:
        """A form's turns in units of another's, round by round."""
        return ratio({name: self._runs[name].means(self._parts[part]) for name in (form, to)}, form, to)

    def print_turns(self) -> None:
        """CPU a turn, and ratios."""
        print(f"\n{self._pace}: server CPU a turn, ms, medians of the rounds")
        print(
            f"      {'':15}{'opening':>9}"
            + "".join(f"{part:>8}" for part in self._parts)
            + "   last/first: ratio"
        )
        for form, run in self._runs.items():
            medians = [run.opening, *(statistics.median(run.means(part)) for part in self._parts.values())]
            numbers = f"{medians[0]:>9.2f}" + "".join(f"{median:>8.2f}" for median in medians[1:])
            print(f"      {form:15}{numbers}   {self.growth(form)}")
        for form, to in COMPARED:
            for part in self._parts:
                print(f"      {form}/{to}, {part} turns: ratio {self.between(form, to, part)}")

    def print_work(self) -> None:
        """What the stages did and how long they took."""
        print(f"\nwork in one conversation of {self._calls} calls, by the engine's counters")
        self._print_told("work", ",.0f")
        print("\nmilliseconds of a response's stages, by the engine's ledgers")
        self._print_told("stages", ".2f", divided_by=self._calls + 1)

    def _print_told(self, what: str, shape: str, divided_by: int = 1) -> None:
        names = list(self._runs["create"].told[what])
        widths = [max(len(name), 9) + 2 for name in names]
        columns = [f"{name.replace('_', ' '):>{width}}" for name, width in zip(names, widths, strict=True)]
        print(f"      {'':15}" + "".join(columns))
        for form in FORMS:
            told = self._runs[form].told[what]
            numbers = zip(names, widths, strict=True)
            print(
                f"      {form:15}"
                + "".join(f"{told[n] / divided_by:>{width}{shape}}" for n, width in numbers)
            )


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    blocks, calls, ends = (1, 4, 2) if quick else (7, CALLS, ENDS)
    verdicts = Verdicts(quick=quick)
    print(
        f"{blocks} rounds, {calls} calls of {TURN_TOKENS} tokens; "
        f"{CALLS} calls grow the context from {FIRST_TOKENS} to {LAST_TOKENS} tokens"
    )
    with server_process(start) as server:
        for pace in PACES:
            compared = Comparison(server, pace, calls=calls, ends=ends)
            compared.measure(blocks)
            accepted = server.ask("http_accepted", pace, "naive HTTP")
            assert accepted == blocks + 1, f"{accepted} connections for {blocks + 1} conversations"
            compared.print_turns()
            if pace == "paced":
                compared.print_work()
                verdicts.at_most(
                    "create, last turns/first turns: ratio", compared.growth("create").median, FLAT_BOUND
                )
                verdicts.at_most(
                    "create/naive HTTP, all turns: ratio",
                    compared.between("create", "naive HTTP").median,
                    NAIVE_BOUND,
                )
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
