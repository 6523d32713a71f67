"""What it costs to get a state back: seconds as a function of tokens, learned from the sampler's own segments.

    seconds of a segment = fixed + prefill · computed tokens + decode · sampled tokens

is fitted by least squares with old segments fading, and pulled towards `PRIOR` while there are few.
Saving and restoring are timed when they happen. A model of one sampler; nothing here reads a clock.
"""

from collections.abc import Sequence
from typing import Final

import attrs

PRIOR: Final = (1.0, 168e-6, 1 / 67.0)
"""Fixed seconds, a second's share for each computed and each sampled token: a fit of 41,791 calls of real agents (R² 0.86)."""
PRIOR_MOVE_SECONDS: Final = 20e-6
"""For each token saved or restored: about what a small model took (22 ms for 1,024 tokens)."""
_FADE: Final = 0.98
"""What a segment weighs after the next: about the last 50 count."""
_SCALES: Final = (1.0, 1000.0, 100.0)
"""Tokens in units that make the three terms of like size."""
_PRIOR_WEIGHT: Final = 0.05
_NEWEST_SHARE: Final = 0.2


@attrs.define
class Move:
    """Seconds per token of one way of moving a state."""

    seconds_per_token: float = PRIOR_MOVE_SECONDS

    def learn(self, tokens: int, seconds: float) -> None:
        """One was moved."""
        if tokens > 0:
            self.seconds_per_token += _NEWEST_SHARE * (seconds / tokens - self.seconds_per_token)


class Costs:
    """Of one sampler."""

    def __init__(self) -> None:
        self._squares = [[0.0] * 3 for _ in range(3)]
        self._products = [0.0] * 3
        self._fit: tuple[float, ...] | None = PRIOR
        self.saving = Move()
        self.restoring = Move()
        self.sampled_tokens = 200.0
        """Of a segment, on the average: the room it will need beyond its prompt."""

    def learn(self, computed_tokens: int, sampled_tokens: int, seconds: float) -> None:
        """A segment took so long."""
        terms = (1.0, computed_tokens / _SCALES[1], sampled_tokens / _SCALES[2])
        for row, left in enumerate(terms):
            self._products[row] = self._products[row] * _FADE + left * seconds
            for column, right in enumerate(terms):
                self._squares[row][column] = self._squares[row][column] * _FADE + left * right
        self.sampled_tokens += _NEWEST_SHARE * (sampled_tokens - self.sampled_tokens)
        self._fit = None

    @property
    def fit(self) -> tuple[float, ...]:
        """Fixed seconds, seconds per computed token, seconds per sampled token; none below zero."""
        if self._fit is None:
            prior = [value * scale for value, scale in zip(PRIOR, _SCALES, strict=True)]
            squares = [
                [value + _PRIOR_WEIGHT * (row == column) for column, value in enumerate(values)]
                for row, values in enumerate(self._squares)
            ]
            products = [
                value + _PRIOR_WEIGHT * known for value, known in zip(self._products, prior, strict=True)
            ]
            found = _solve(squares, products)
            self._fit = tuple(max(0.0, value / scale) for value, scale in zip(found, _SCALES, strict=True))
        return self._fit

    def prefill_seconds(self, tokens: int) -> float:
        """How much longer a segment takes that must compute so many tokens anew."""
        return self.fit[1] * tokens

    def reload_seconds(self, tokens: int, *, saved: bool) -> float:
        """How long it takes to get a state back that was saved, or was dropped."""
        return self.restoring.seconds_per_token * tokens if saved else self.prefill_seconds(tokens)

    def swap_seconds(self, tokens: int) -> float:
        """To write a state away and to bring it back."""
        return (self.saving.seconds_per_token + self.restoring.seconds_per_token) * tokens


def _solve(squares: Sequence[Sequence[float]], products: Sequence[float]) -> list[float]:
    """Gauss's elimination of a positive definite system, which needs no pivoting; destroys nothing."""
    size = len(products)
    rows = [[*values, product] for values, product in zip(squares, products, strict=True)]
    for step in range(size):
        for row in range(step + 1, size):
            share = rows[row][step] / rows[step][step]
            rows[row] = [value - share * above for value, above in zip(rows[row], rows[step], strict=True)]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * found[column] for column in range(row + 1, size))
        found[row] = (rows[row][size] - known) / rows[row][row]
    return found
