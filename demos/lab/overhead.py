"""The smallest model of a rollout: decoding, tools, and a constant for each response.

It has three published numbers, and with them says what OpenAI reported; it says nothing of why. `demos.lab.model` does.
"""

import attrs

from demos.lab.published import ALPHA, FITTED, OVERHEAD_SECONDS, Form
from demos.lab.workload import Step, Work


@attrs.frozen
class Sums:
    """All that most costs depend on, so that a rollout is walked once and then asked about at each point of a grid."""

    responses: int
    sampled_tokens: int
    tool_seconds: float
    context_tokens: int
    """Of the whole input, summed up over the calls."""
    new_tokens: int
    """Of what was not there before, the history once: what a form that never sends again sends."""

    @property
    def resent_tokens(self) -> int:
        """What a form that sends all of it sends again."""
        return self.context_tokens - self.new_tokens


def sums_of(work: Work) -> Sums:
    """Of a rollout."""
    return Sums(
        responses=len(work.steps),
        sampled_tokens=work.sampled_tokens,
        tool_seconds=work.tool_seconds,
        context_tokens=sum(work.contexts()),
        new_tokens=work.history_tokens + sum(step.new_tokens for step in work.steps),
    )


def overhead_model_seconds(
    sums: Sums,
    tokens_per_second: float,
    overhead_seconds: float,
    *,
    removable_share: float = 0.0,
    seconds_per_context_token: float = 0.0,
) -> float:
    """A rollout's time. The history's term is what is left of it when `removable_share` of it was saved."""
    history = (1 - removable_share) * seconds_per_context_token * sums.context_tokens
    return (
        sums.sampled_tokens / tokens_per_second
        + sums.tool_seconds
        + overhead_seconds * sums.responses
        + history
    )


def overhead_model_saving(
    sums: Sums,
    form: Form,
    tokens_per_second: float,
    *,
    against: Form = "http",
    removable_share: float | None = None,
) -> float:
    """Share of the time that a form saves, with the published constants.

    `removable_share`: how much of the fitted history term it saves besides; None: there is no such term.
    """
    per_token = 0.0 if removable_share is None else FITTED.seconds_per_context_token.value
    before = overhead_model_seconds(
        sums, tokens_per_second, OVERHEAD_SECONDS[against], seconds_per_context_token=per_token
    )
    after = overhead_model_seconds(
        sums,
        tokens_per_second,
        OVERHEAD_SECONDS[form],
        removable_share=removable_share or 0.0,
        seconds_per_context_token=per_token,
    )
    return 1 - after / before


def alpha_work() -> Work:
    """The rollout of OpenAI's ten timings, as far as it is known: its tokens are spread evenly, its tools take no time."""
    alpha = ALPHA
    each, more = divmod(alpha.output_tokens, alpha.responses)
    steps = tuple(Step(0, each + (index < more), 0.0) for index in range(alpha.responses))
    return Work("openai-alpha", alpha.input_tokens_http, steps)
