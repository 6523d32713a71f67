"""What the samplings of one sampler did, counted."""

import attrs


@attrs.frozen(kw_only=True)
class TokenStatistics:
    """What the samplings of a sampler did."""

    segments: int
    sampled_tokens: int
    reused_tokens: int
    computed_tokens: int
    retries: int
    failures: int
    open_samplings: int
    remembered_turns: int
    restored_turns: int
    """Turns of a history that were put back as they had been sampled."""
    drifted_turns: int
    """Those of them whose items would be other tokens, rendered."""
    cuts: int
    """How often a format forgot a part of what a model had read and said."""


@attrs.define
class TokenCounts:
    """As they go on."""

    segments: int = 0
    sampled_tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    retries: int = 0
    failures: int = 0
    open_samplings: int = 0
    restored_turns: int = 0
    drifted_turns: int = 0
    cuts: int = 0
