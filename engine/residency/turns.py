"""Continuum's eta: does a rollout that has called tools often end soon? Learned from the rollouts that ended."""

_FADE = 0.995
"""What a rollout weighs after the next."""


class Turns:
    """Sums over all (k turns done, N - k turns left) of rollouts with N turns."""

    def __init__(self) -> None:
        self._pairs = self._sum = self._squares = self._products = 0.0

    def learn(self, turns: int) -> None:
        """A rollout ended after so many turns. The two of a pair have the same sums: they are the same numbers, reversed."""
        total = turns * (turns + 1) / 2
        squares = total * (2 * turns + 1) / 3
        self._pairs = self._pairs * _FADE + turns + 1
        self._sum = self._sum * _FADE + total
        self._squares = self._squares * _FADE + squares
        self._products = self._products * _FADE + turns * total - squares

    @property
    def eta(self) -> float:
        """The negated correlation, -1 to 1; 0 as long as it has none."""
        spread = self._pairs * self._squares - self._sum**2
        return -(self._pairs * self._products - self._sum**2) / spread if spread > 1e-9 else 0.0
