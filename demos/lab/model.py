"""What a rollout costs in each form, by arithmetic: so that measurements have something to be held against.

What a form saves is a set of `SAVINGS`, each of which can be had alone; an arm is such a set.
For a call that reads `context` tokens, `new` of them not sent before:

    saving           without it, each call                     with it
    connection       opens a connection                        only the first does
    bytes            sends its whole context                   sends what is new
    validation       validates its whole context               validates what is new
    classification   classifies its whole context              classifies what is new
    tokenization     renders its whole context                 renders what is new
    routing          is a response: opened with tools and      the rollout is one response
                     instructions, and closed
    kv               prefills its whole context                prefills what is new
    overlap          closing a response delays what follows    hides behind the tool, and at the end behind nothing

All else is the same in each arm: decoding, tools, a round trip for each call, attention over the context.
The savings are not additive: who never closes a response has nothing to hide, and a new connection is slow to grow the
window that a long history needs. So what each is worth depends on what is there already; `demos.lab.ablation` shares it out.
No cost here is taken from a measurement of ours: a `World` is what one asks about. A smaller model, which knows no more
than a constant for each response, is in `demos.lab.overhead`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import attrs

from demos.lab.overhead import sums_of
from demos.lab.published import FITTED, OVERHEAD_SECONDS
from demos.lab.workload import Work

SAVINGS: Final = (
    "connection",
    "bytes",
    "validation",
    "classification",
    "tokenization",
    "routing",
    "kv",
    "overlap",
)

Savings = frozenset[str]

_PER_TOKEN: Final = ("validation", "classification", "tokenization", "kv")
_OPTIMISED: Final[Savings] = frozenset(SAVINGS) - {"bytes", "routing"}

ARM_SAVINGS: Final[Mapping[str, Savings]] = {
    "naive": frozenset(),
    "naive-keep": frozenset({"connection"}),
    "optimised": _OPTIMISED,
    "ws-full": frozenset({"connection", "kv", "overlap"}),
    "create": _OPTIMISED | {"bytes"},
    "create-warm": _OPTIMISED | {"bytes"},
    "append": frozenset(SAVINGS),
    "inject": frozenset(SAVINGS),
}
"""What each arm saves. `ws-full` has no cache of contexts: this engine keeps one for HTTP only."""

_WARMED_UP: Final = frozenset({"create-warm"})
"""Arms with a response more, before the first, that samples nothing; its time counts."""


@attrs.frozen(kw_only=True)
class World:
    """Model, network and server, as numbers. Whatever is not given costs nothing."""

    tokens_per_second: float
    rtt_seconds: float = 0.0
    bytes_per_second: float = math.inf
    """From client to server."""
    connect_round_trips: float = 1.0
    """Before the first byte of a request: 1 for TCP, 2 with TLS 1.3."""
    window_bytes: float = math.inf
    """What a new connection may send before an answer; it doubles each round trip. A grown one is not modelled."""
    bytes_per_token: float = 4.5
    """Of items as JSON (our assumption for text in English and code)."""
    envelope_bytes: int = 200
    """Of each request, whatever it brings."""
    preamble_bytes: int = 0
    """Tools and instructions: with each response."""
    fixed_seconds: float = 0.0
    """Of each call, in any form."""
    opening_seconds: float = 0.0
    """Of each response: finding model, account, engine and slot; its first events."""
    closing_seconds: float = 0.0
    """Of each response: accounting, keeping, billing."""
    validation_seconds_per_token: float = 0.0
    classification_seconds_per_token: float = 0.0
    tokenization_seconds_per_token: float = 0.0
    prefill_seconds_per_token: float = 0.0
    attention_seconds_per_token: float = 0.0
    """Of the context, at each call, in any form."""

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            is_divisor = name in {"tokens_per_second", "bytes_per_second", "window_bytes"}
            if not (value > 0 if is_divisor else 0 <= value < math.inf):
                raise ValueError(
                    f"{name} is {value!r}; it must be {'more than 0' if is_divisor else '0 or more'}"
                )

    def seconds_per_token(self, saving: str) -> float:
        """The cost that a saving of `validation`, `classification`, `tokenization` or `kv` spares."""
        name = "prefill" if saving == "kv" else saving
        return float(getattr(self, f"{name}_seconds_per_token"))

    @classmethod
    def fitted(cls, tokens_per_second: float, *, removable_share: float, rtt_seconds: float = 0.0) -> "World":
        """The costs fitted to real traffic; a share of the term in the history is work that can be saved.

        That share goes to the three stages alike, for nobody has published which of them it is; of the fixed term what
        the three published overheads tell apart: suspended from create is the response, the rest nobody can save.
        """
        if not 0 <= removable_share <= 1:
            raise ValueError(f"removable_share is {removable_share!r}; it must be 0 to 1")
        history = FITTED.seconds_per_context_token.value
        opening = (OVERHEAD_SECONDS["create"] - OVERHEAD_SECONDS["suspended"]) / 2
        return cls(
            tokens_per_second=tokens_per_second,
            rtt_seconds=rtt_seconds,
            fixed_seconds=FITTED.fixed_seconds.value - 2 * opening,
            opening_seconds=opening,
            closing_seconds=opening,
            validation_seconds_per_token=history * removable_share / 3,
            classification_seconds_per_token=history * removable_share / 3,
            tokenization_seconds_per_token=history * removable_share / 3,
            prefill_seconds_per_token=FITTED.seconds_per_uncached_token.value,
            attention_seconds_per_token=history * (1 - removable_share),
        )


@attrs.frozen
class Tokens:
    """What of a rollout's input was worked on more than once."""

    resent: int
    revalidated: int
    reclassified: int
    rerendered: int
    reprefilled: int


class Model:
    """One rollout in one world: what any set of savings makes of it."""

    def __init__(self, work: Work, world: World) -> None:
        self.work = work
        self.world = world
        self.sums = sums_of(work)

    # --- time ---

    def seconds(self, savings: Savings, *, warm_up: bool = False) -> float:
        """From the first byte to the last event. `warm_up`: with a response before it that samples nothing."""
        world, sums = self.world, self.sums
        return (
            sums.sampled_tokens / world.tokens_per_second
            + sums.tool_seconds
            + sums.responses * (world.rtt_seconds + world.fixed_seconds)
            + sums.context_tokens * world.attention_seconds_per_token
            + self._connecting(savings)
            + self.bytes_up(savings, warm_up=warm_up) / world.bytes_per_second
            + sum(self._worked_on(saving, savings) * world.seconds_per_token(saving) for saving in _PER_TOKEN)
            + (1 if "routing" in savings else sums.responses) * world.opening_seconds
            + self._closing("routing" in savings, "overlap" in savings)
            + warm_up * (world.rtt_seconds + world.fixed_seconds + world.opening_seconds)
        )

    def arm_seconds(self, arm: str) -> float:
        """As `seconds`, for one of `ARM_SAVINGS`. `KeyError`: no such arm."""
        return self.seconds(ARM_SAVINGS[arm], warm_up=arm in _WARMED_UP)

    def first_token_seconds(self, savings: Savings, step: int = 0) -> float:
        """From the first byte of a call to its first token."""
        world = self.world
        context = self._contexts[step]
        new = self._new_tokens[step]
        first = step == 0
        sent = self._request_bytes(savings, step)
        opens = first or "connection" not in savings
        return (
            world.rtt_seconds
            + world.fixed_seconds
            + opens * (world.connect_round_trips * world.rtt_seconds + self._window_seconds(sent))
            + sent / world.bytes_per_second
            + context * world.attention_seconds_per_token
            + sum(
                (new if saving in savings else context) * world.seconds_per_token(saving)
                for saving in _PER_TOKEN
            )
            + (first or "routing" not in savings) * world.opening_seconds
            + 1 / world.tokens_per_second
        )

    def _worked_on(self, saving: str, savings: Savings) -> int:
        return self.sums.new_tokens if saving in savings else self.sums.context_tokens

    def _connecting(self, savings: Savings) -> float:
        opening = self.world.connect_round_trips * self.world.rtt_seconds
        calls = range(1 if "connection" in savings else self.sums.responses)
        if math.isinf(self.world.window_bytes):
            return opening * len(calls)
        return sum(opening + self._window_seconds(self._request_bytes(savings, step)) for step in calls)

    def _window_seconds(self, sent: float) -> float:
        """Round trips that a new connection needs until its window has grown to what is sent."""
        if sent <= self.world.window_bytes:
            return 0.0
        return math.ceil(math.log2(sent / self.world.window_bytes + 1) - 1) * self.world.rtt_seconds

    def _closing(self, once: bool, hidden: bool) -> float:
        """The last response's client has its answer before it is closed, if that is hidden."""
        seconds = self.world.closing_seconds
        if once:
            return 0.0 if hidden else seconds
        if not hidden:
            return self.sums.responses * seconds
        return sum(max(0.0, seconds - step.tool_seconds) for step in self.work.steps[:-1])

    # --- what is sent and done again ---

    def bytes_up(self, savings: Savings, *, warm_up: bool = False) -> int:
        """From client to server, without what the transport adds."""
        world, sums = self.world, self.sums
        sent = sums.new_tokens if "bytes" in savings else sums.context_tokens
        responses = (1 if "routing" in savings else sums.responses) + warm_up
        return round(
            sent * world.bytes_per_token
            + (sums.responses + warm_up) * world.envelope_bytes
            + responses * world.preamble_bytes
        )

    def tokens(self, savings: Savings) -> Tokens:
        """Sent and worked on again."""

        def again(saving: str) -> int:
            return self._worked_on(saving, savings) - self.sums.new_tokens

        return Tokens(
            again("bytes"), again("validation"), again("classification"), again("tokenization"), again("kv")
        )

    def _request_bytes(self, savings: Savings, step: int) -> float:
        sent = self._new_tokens[step] if "bytes" in savings else self._contexts[step]
        preamble = self.world.preamble_bytes if step == 0 or "routing" not in savings else 0
        return sent * self.world.bytes_per_token + self.world.envelope_bytes + preamble

    @cached_property
    def _contexts(self) -> Sequence[int]:
        return list(self.work.contexts())

    @cached_property
    def _new_tokens(self) -> Sequence[int]:
        first, *rest = (step.new_tokens for step in self.work.steps)
        return [self.work.history_tokens + first, *rest]
