"""How long a rollout whose state is not in memory waits for room, at most, and why that is so.

The line before the door (`engine.residency.budget`) is a `SlotPool` of one: `wait_bound` says how many are let in at the
latest when it is one's own turn, and everybody ahead stands at the door no longer than `stand_bound_seconds`:

    patience   Those whom the policy pins are waited for, for a time that is fixed when one comes to the door.
    segment    From then on nobody else goes in: who would begin a segment gives its state up and joins the line.
               What is in memory is one of three: idle, and taken at once; in a segment, and taken when it ends;
    loan       or it has room since a moment ago, and waits for the slot that it had lent, to begin its segment.
    moves      Taking a state is shielded and bounded, one after the other.

When all that is over nothing else is in memory, so whoever stands there has room, or is larger than all of it and alone.
Then the slot that it lent comes back, before any that are granted: one more wait for a loan.

Nothing is said of how long a segment takes; that is the model's affair.
"""

from typing import Final

PATIENCE: Final = 4.0
"""How often over the room that is asked for may be computed in the time that somebody waits for pinned states."""
LOOK_SECONDS: Final = 0.5
"""Who waits for pinned states looks again so often, besides when something changes: policies change their mind with time."""


def stand_bound_seconds(
    *, patience_seconds: float, segment_seconds: float, loan_seconds: float, moves_seconds: float = 0.0
) -> float:
    """How long one stands at the door.

    `patience_seconds`: the longest that anybody had. `segment_seconds`: the longest that a slot is held and not lent.
    `loan_seconds`: the longest wait for a lent slot (`loan_bound`). `moves_seconds`: to take all states, one by one.
    """
    return patience_seconds + loan_seconds + segment_seconds + moves_seconds


def room_bound_seconds(*, grants: int, stand_seconds: float, loan_seconds: float) -> float:
    """From the wish for room until there is room and the slot is back.

    `grants`: of the door, the own one included (`wait_bound`); it was taken when one came. `stand_seconds`: at the most.
    """
    return (grants + 1) * stand_seconds + loan_seconds
