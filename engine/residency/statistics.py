"""What a model keeps of its rollouts, and what was moved: counts, and a view of them."""

import attrs


@attrs.frozen(kw_only=True)
class ResidencyStatistics:
    """What is in memory, and what was moved; sums of all samplers where there are several."""

    sequences: int = 0
    """Samplings that are open."""
    budget_tokens: int = 0
    """0 = no budget: everything stays, and nothing here is counted."""
    slots_free: int = 0
    """Of the models' own, where a model has so many and no more."""
    slots_waiting: int = 0
    """Segments that wait for one."""
    resident_tokens: int = 0
    running_tokens: int = 0
    """Of these, in segments that sample; with what they are expected to sample."""
    saved_tokens: int = 0
    """Written away."""
    peak_tokens: int = 0
    """The most that was resident."""
    dropped: int = 0
    """States that made room, or lapsed, and are gone."""
    saved: int = 0
    restored: int = 0
    reused_tokens: int = 0
    """Of prompts: found in memory."""
    computed_tokens: int = 0
    waits_for_room: int = 0
    """Segments that had to wait, without a slot, until others' states could go."""
    longest_wait_seconds: float = 0.0
    """Of these, until the slot was back."""
    longest_patience_seconds: float = 0.0
    """With states that were pinned."""


@attrs.define
class Counts:
    """What a keeper counts as it goes on; the names are those of `ResidencyStatistics`."""

    dropped: int = 0
    saved: int = 0
    restored: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    waits_for_room: int = 0
    longest_wait_seconds: float = 0.0
    longest_patience_seconds: float = 0.0
    peak_tokens: int = 0
