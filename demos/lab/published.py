"""Numbers from elsewhere, each once: with its source, its licence and how far it can be trusted.

Nothing here was measured by this project. `source` names an entry of `SOURCES`; its trust mark is one of

    primary    read where it was published: a vendor's text, a repository, a paper
    secondary  reported by somebody else
    own        our arithmetic on such numbers, or our assumption; says so where it stands

Facts and aggregates only: no text and no data file of others is copied.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal

import attrs

Trust = Literal["primary", "secondary", "own"]


@attrs.frozen
class Source:
    """Where numbers are from."""

    title: str
    where: str
    licence: str
    trust: Trust


SOURCES: Final[Mapping[str, Source]] = {
    "alpha": Source(
        "OpenAI, alpha document on WebSockets and incremental inputs in the Responses API, 2026-02-06",
        "read in a public copy",
        "none stated; facts only",
        "primary",
    ),
    "post": Source(
        "OpenAI, Speeding up agentic workflows with WebSockets, 2026-04-22",
        "https://openai.com/index/speeding-up-agentic-workflows-with-websockets",
        "none stated; facts only",
        "primary",
    ),
    "kvct": Source(
        "kv-cache-tester: anonymised traffic of Claude Code, 739 files, at 94f6046",
        "https://github.com/callanjfox/kv-cache-tester",
        "Apache-2.0; aggregates only",
        "primary",
    ),
    "fit": Source(
        "our least squares on the same traffic: 41,791 model calls of 689 sessions, R² 0.86",
        "https://github.com/callanjfox/kv-cache-tester",
        "Apache-2.0; our own fit",
        "own",
    ),
    "tracelab": Source(
        "TraceLab (SyFI Lab, University of Washington), arXiv 2606.30560: 4,265 sessions, 432,510 tool calls",
        "https://tracelab.cs.washington.edu",
        "CC BY 4.0; changed: published aggregates only",
        "primary",
    ),
    "assumed": Source("our assumption", "this project", "MIT", "own"),
}


# --- OpenAI's ten timings ------------------------------------------------------------------------------------------


@attrs.frozen
class Timings:
    """Runs of one small rollout over two transports: five and five, unpaired, tool time unknown and taken for none."""

    model: str
    tool_calls: int
    output_tokens: int
    http_seconds: tuple[float, ...]
    websocket_seconds: tuple[float, ...]
    input_tokens_http: int
    input_tokens_websocket: int
    """Not the same: the two ran different inputs."""
    source: str

    @property
    def responses(self) -> int:
        """One more than there are calls."""
        return self.tool_calls + 1

    @property
    def saving(self) -> float:
        """Share of the mean over HTTP."""
        return 1 - statistics.fmean(self.websocket_seconds) / statistics.fmean(self.http_seconds)

    def overhead_seconds(self, seconds: Sequence[float], tokens_per_second: float) -> float:
        """What is left of the mean for each response when decoding is taken away."""
        return (statistics.fmean(seconds) - self.output_tokens / tokens_per_second) / self.responses


ALPHA: Final = Timings(
    model="gpt-5.2",
    tool_calls=20,
    output_tokens=405,
    http_seconds=(19.557, 19.150, 21.156, 19.438, 21.880),
    websocket_seconds=(13.166, 14.543, 14.874, 15.540, 13.395),
    input_tokens_http=8_631,
    input_tokens_websocket=9_261,
    source="alpha",
)
ALPHA_SAVING_INTERVAL: Final = (0.242, 0.344)
"""Own: 95 % bootstrap over the ten runs."""

TOKENS_PER_SECOND: Final = 65.0
"""Decoding before the post's speed-up (post)."""
FAST_TOKENS_PER_SECOND: Final = 1_000.0
"""After it (post)."""
BURST_TOKENS_PER_SECOND: Final = 4_000.0
"""Its bursts (post)."""

Form = Literal["http", "create", "suspended"]
FORMS: Final[tuple[Form, ...]] = ("http", "create", "suspended")
"""The whole history with each request; a response for each round that names the one before; one response."""

OVERHEAD_SECONDS: Final[Mapping[Form, float]] = {"http": 0.667, "create": 0.384, "suspended": 0.05}
"""For each response, or each segment of the one: the first two are what `ALPHA` leaves at 65 tokens/s (own arithmetic on
alpha), the last is assumed. That they do not change with the model's speed is assumed, too."""


# --- a cost model of real traffic ----------------------------------------------------------------------------------


@attrs.frozen
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@attrs.frozen
class FittedCosts:
    """Seconds of a model call = fixed + out/rate + uncached·a + context·b.

    Observational, through a proxy, one vendor; calls of at most 60 s. The term in `context` mixes work on the history that
    an API could save with loading of caches and slower attention, that it cannot: results are to be shown for both.
    """

    fixed_seconds: Estimate
    tokens_per_second: Estimate
    seconds_per_uncached_token: Estimate
    seconds_per_context_token: Estimate
    residual_seconds: Mapping[float, float]
    """By quantile: skewed."""
    source: str


FITTED: Final = FittedCosts(
    fixed_seconds=Estimate(1.085, 0.891, 1.248),
    tokens_per_second=Estimate(67.2, 66.1, 68.5),
    seconds_per_uncached_token=Estimate(1.681e-4, 1.515e-4, 1.850e-4),
    seconds_per_context_token=Estimate(1.343e-5, 1.218e-5, 1.479e-5),
    residual_seconds={0.05: -3.25, 0.25: -1.13, 0.5: -0.33, 0.75: 0.75, 0.95: 4.35},
    source="fit",
)


# --- what others report --------------------------------------------------------------------------------------------


@attrs.frozen
class Report:
    """A saving of a rollout's whole time, WebSocket against HTTP, as somebody said it."""

    who: str
    saving: float
    conditions: str
    where: str
    trust: Trust
    is_upper_bound: bool = False
    """It was said as "up to"."""


REPORTS: Final = (
    Report(
        "OpenAI",
        0.40,
        "rollouts of 20 and more tool calls; against the HTTP of its day",
        SOURCES["post"].where,
        "primary",
        is_upper_bound=True,
    ),
    Report("Vercel", 0.40, "a user of the launch", SOURCES["post"].where, "secondary", is_upper_bound=True),
    Report("Cline", 0.39, "work on several files; best 50 %", SOURCES["post"].where, "secondary"),
    Report("Cursor", 0.30, "a user of the launch", SOURCES["post"].where, "secondary", is_upper_bound=True),
    Report("OpenAI alpha", 0.293, "gpt-5.2, 20 calls, 405 output tokens, 5 + 5 runs", "the alpha", "primary"),
    Report(
        "InfoQ", 0.29, "GPT-5.4; range 15 to 29 %; 82 % fewer bytes sent", "InfoQ, April 2026", "secondary"
    ),
    Report("xAI", 0.20, "a vendor's documentation", "docs of xAI", "primary", is_upper_bound=True),
    Report("VS Code 1.118", 0.12, "in production, on supported models", "release notes", "primary"),
    Report(
        "sglang",
        0.061,
        "12 chains of 20 turns; best 14 %",
        "github.com/sgl-project/sglang pull 22366",
        "primary",
    ),
    Report(
        "smg",
        0.0,
        "A100, models of 3 to 32 billion: end to end within 2 %, first token 28 to 41 % earlier",
        "smg pull 1770",
        "primary",
    ),
    Report("browser-use", 0.0, "no major difference: slow steps", "browser-use pull 5320", "primary"),
)
"""From the largest to none. The baselines differ and are not comparable with each other."""

TTFT_REPORT: Final = 0.45
"""Better time to first token, HTTP against HTTP, before WebSockets: caches, fewer hops, faster safety (secondary)."""


# --- workloads as quantiles ----------------------------------------------------------------------------------------

Quantiles = Sequence[tuple[float, float]]
"""(probability, value), in order; between two the value is linear in the logarithm. Above the last nothing is drawn."""

# kvct. The values at probability 0 are ours: the smallest that seems sensible.
CONTEXT_TOKENS: Final[Quantiles] = ((0.0, 20_000), (0.1, 42_993), (0.5, 104_197), (0.9, 234_099))
NEW_TOKENS: Final[Quantiles] = ((0.0, 10), (0.1, 27), (0.5, 373), (0.9, 3_233), (0.99, 17_018))
SAMPLED_TOKENS: Final[Quantiles] = ((0.0, 60), (0.1, 107), (0.5, 219), (0.9, 916), (0.99, 3_751))
CALLS: Final[Quantiles] = ((0.0, 1), (0.1, 1), (0.5, 3), (0.9, 33), (0.99, 91))
GAP_SECONDS: Final[Quantiles] = ((0.0, 1), (0.1, 4), (0.5, 9), (0.9, 74), (0.99, 924))
"""Between a response and the next: the user's own time is in it, on a grid of 1 s."""

# tracelab, each call on its own
CALL_SECONDS: Final[Quantiles] = ((0.0, 0.01), (0.5, 0.3), (0.9, 13.6), (0.99, 216))
CALL_SECONDS_MEAN: Final = 18.4
CALL_SECONDS_WITH_TAIL: Final[Quantiles] = (*CALL_SECONDS, (1.0, 2_900))
"""Own: the last value is the one that gives the published mean, since the last 1 % holds half of the time."""
TOOLS: Final[Mapping[str, tuple[float, Quantiles]]] = {
    "read": (0.35, ((0.0, 0.01), (0.5, 0.036), (0.9, 0.3))),
    "edit": (0.15, ((0.0, 0.02), (0.5, 0.095), (0.9, 0.8))),
    "bash": (0.50, ((0.0, 0.02), (0.5, 0.409), (0.8, 13.6), (0.98, 216))),
}
"""Share and durations; published are the medians. Own: the shares, and that each spreads as all calls do. The shares of
the tail are those of all calls, which are twice as likely among half of them."""


def drawn(source: random.Random, quantiles: Quantiles) -> float:
    """A value of a distribution that is known by its quantiles."""
    at = source.uniform(0.0, quantiles[-1][0])
    (low, first), (high, second) = next(pair for pair in pairwise(quantiles) if at <= pair[1][0])
    return float(first * (second / first) ** ((at - low) / (high - low)))
