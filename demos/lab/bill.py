"""The latency bill of a rollout that was recorded: what was sent again and done again, who waited for what, and what each
other form would have saved.

All figures are read off the trace (`demos.lab.chain` says how) but one: what another form would have saved is the
smallest model with published constants, and a range, because nobody has published how much of the work on a history can
be saved. A server that is faster than those constants has less to save: then it is the same share of what was waited.
What a trace cannot show is said, and is None, never 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from demos.lab.chain import STATES, Chain
from demos.lab.overhead import Sums, overhead_model_seconds
from demos.lab.published import FITTED, FORMS, OVERHEAD_SECONDS, Form

CONSTANTS: Final = (
    f"what a form would have saved, after the first response: {OVERHEAD_SECONDS['http']:g} s a response over HTTP with the whole history, "
    f"{OVERHEAD_SECONDS['create']:g} s with previous_response_id on a WebSocket (both from OpenAI's ten timings), "
    f"{OVERHEAD_SECONDS['suspended']:g} s a segment of a suspended response (assumed), and of the "
    f"{FITTED.seconds_per_context_token.value * 1e5:.1f} s that 100,000 tokens of history cost a call (fitted to real "
    "traffic) nothing to all; where the log has times, no more than the same share of what was waited for. An estimate: other "
    "servers have other constants"
)


@attrs.frozen
class Instead:
    """What a form would have made of the same rollout."""

    bytes_up: int | None
    seconds_saved: tuple[float, float] | None
    """From, to; negative: it would have cost more."""


@attrs.frozen
class Sending:
    """What the client sent."""

    requests: int
    bytes_up: int
    resent_bytes: int
    items: int
    resent_items: int
    resent_shares: tuple[float, ...]
    """Of each request but the first."""


@attrs.frozen
class Reading:
    """What the model read and said, by the server's own account; of answers without a usage nothing is in it."""

    input_tokens: int
    uncached_tokens: int | None
    redone_tokens: int | None
    """Not cached, and read or sampled before."""
    resent_tokens: int
    """Sent as items once more."""
    output_tokens: int


@attrs.frozen
class Bill:
    """One rollout. None: the trace does not show it."""

    trace: str
    response_id: str | None
    """Of its first response."""
    form: Form
    guessed: bool
    responses: int
    calls: int
    refused_requests: int
    sending: Sending | None
    reading: Reading | None
    seconds: Mapping[str, float] | None
    """By state; together from the first thing to the last."""
    instead: Mapping[Form, Instead]
    notes: tuple[str, ...]

    @property
    def wall_seconds(self) -> float | None:
        """From the first thing to the last."""
        return None if self.seconds is None else sum(self.seconds.values())


def bill_of(chain: Chain) -> Bill:
    """Of a rollout that was read."""
    sent = chain.sent
    return Bill(
        trace=chain.trace,
        response_id=chain.first_response,
        form=chain.form,
        guessed=chain.guessed,
        responses=chain.responses,
        calls=chain.calls,
        refused_requests=chain.refusals,
        sending=Sending(
            sent.requests, sent.bytes, sent.resent_bytes, sent.items, sent.resent_items, tuple(sent.shares)
        )
        if sent.requests
        else None,
        reading=_reading(chain),
        seconds={state: chain.seconds[state] for state in STATES} if chain.wall_seconds else None,
        instead={form: _instead(chain, form) for form in FORMS if form != chain.form},
        notes=tuple(_notes(chain)),
    )


def _reading(chain: Chain) -> Reading | None:
    if not chain.segments:
        return None
    return Reading(
        input_tokens=sum(segment.input_tokens for segment in chain.segments),
        uncached_tokens=chain.uncached_tokens,
        redone_tokens=chain.redone_tokens,
        resent_tokens=sum(segment.seen_tokens for segment in chain.segments) if chain.form == "http" else 0,
        output_tokens=sum(segment.output_tokens for segment in chain.segments),
    )


def _notes(chain: Chain) -> Iterator[str]:
    if chain.guessed:
        yield "its responses were put together by their order"
    if chain.answers_without_usage:
        answers = len(chain.segments) + chain.answers_without_usage
        tokens = "tokens are those of the others" if chain.segments else "no tokens"
        yield f"no usage in {chain.answers_without_usage} of its {answers:,} answers: {tokens}"
    if chain.segments and chain.uncached_tokens is None:
        yield "the usage does not say what was cached"
    if not chain.sent.requests and _has_lost_reasoning(chain):
        yield "its reasoning is taken not to have been sent back"
    if chain.clocks > 1:
        yield f"on {chain.clocks} clocks: what passed between two of them has no time"
    if chain.pending:
        count = len(chain.pending)
        yield f"{count} call{'' if count == 1 else 's'} without an answer at its end"


def _has_lost_reasoning(chain: Chain) -> bool:
    return chain.leaves_out_reasoning and any(segment.reasoning_tokens for segment in chain.segments[:-1])


def _instead(chain: Chain, form: Form) -> Instead:
    return Instead(_bytes_instead(chain, form), _seconds_saved(chain, form))


def _bytes_instead(chain: Chain, form: Form) -> int | None:
    sent = chain.sent
    if not sent.requests:
        return None
    if form == "http":
        return sent.full_bytes
    new = sent.bytes - sent.resent_bytes
    # that form says tools and instructions with each response
    return new + chain.preamble_bytes * (sent.requests - 1) if form == "create" else new


def _seconds_saved(chain: Chain, form: Form) -> tuple[float, float] | None:
    """With none and with all of the work on the history saved, by the form that has none of it."""
    if not chain.segments or chain.answers_without_usage or chain.is_usage_whole:
        return None  # without a usage for each stretch the contexts are not known
    low, high = sorted(_saved_with(chain, form, share) for share in (0.0, 1.0))
    return low, high


def _saved_with(chain: Chain, form: Form, removable_share: float) -> float:
    """By the constants; where there are times, no more than the same share of what was waited after the first response."""
    sums = _sums(chain)
    own = _model_seconds(sums, chain.form, removable_share)
    saved = own - _model_seconds(sums, form, removable_share)
    if not chain.wall_seconds or not own:
        return saved
    return min(saved, saved / own * chain.later_waiting_seconds, key=abs)


def _model_seconds(sums: Sums, form: Form, removable_share: float) -> float:
    return overhead_model_seconds(
        sums,
        1.0,  # nothing is sampled in these sums
        OVERHEAD_SECONDS[form],
        removable_share=0.0 if form == "http" else removable_share,
        seconds_per_context_token=FITTED.seconds_per_context_token.value,
    )


def _sums(chain: Chain) -> Sums:
    """Of all but the first response, where no form has anything to save; without what takes as long in each form."""
    segments = chain.segments[1:]
    return Sums(
        responses=len(segments),
        sampled_tokens=0,
        tool_seconds=0.0,
        context_tokens=sum(segment.input_tokens for segment in segments),
        new_tokens=sum(segment.input_tokens - segment.seen_tokens for segment in segments),
    )


# --- all of them ---------------------------------------------------------------------------------------------------


def totals_of(bills: Sequence[Bill], notes: Iterable[str] = ()) -> dict[str, Any]:
    """As the last line of `--json` has it. A sum is of what is known; `of` says of how many rollouts that is."""
    sendings = [bill.sending for bill in bills if bill.sending]
    readings = [bill.reading for bill in bills if bill.reading]
    times = [bill.seconds for bill in bills if bill.seconds]
    return {
        "rollouts": len(bills),
        "responses": sum(bill.responses for bill in bills),
        "calls": sum(bill.calls for bill in bills),
        "refused_requests": sum(bill.refused_requests for bill in bills),
        "sent": _summed(sendings, "requests", "bytes_up", "resent_bytes", "items", "resent_items"),
        "tokens": _summed(
            readings, "input_tokens", "uncached_tokens", "redone_tokens", "resent_tokens", "output_tokens"
        ),
        "seconds": {"of": len(times), **{state: sum(each[state] for each in times) for state in STATES}}
        if times
        else None,
        "instead": {form: _all_instead(bills, form) for form in FORMS},
        "notes": list(notes),
    }


def _summed(values: Sequence[Any], *names: str) -> dict[str, int | None] | None:
    if not values:
        return None
    known = {name: [n for value in values if (n := getattr(value, name)) is not None] for name in names}
    return {"of": len(values), **{name: sum(found) if found else None for name, found in known.items()}}


def _all_instead(bills: Sequence[Bill], form: Form) -> dict[str, Any]:
    """Of the rollouts that had another form."""
    others = [bill.instead[form] for bill in bills if form in bill.instead]
    sizes = [each.bytes_up for each in others if each.bytes_up is not None]
    saved = [each.seconds_saved for each in others if each.seconds_saved is not None]
    return {
        "of": len(others),
        "bytes_up": sum(sizes) if sizes else None,
        "seconds_saved": [sum(low for low, _ in saved), sum(high for _, high in saved)] if saved else None,
        "seconds_saved_of": len(saved),
    }


def as_json(bill: Bill) -> dict[str, Any]:
    """A line of `--json`."""
    return {**attrs.asdict(bill), "wall_seconds": bill.wall_seconds}
