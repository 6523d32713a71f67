"""An account that may be overdrawn up to a limit."""

from rates import interest

SAVING_RATE = 150
OVERDRAFT_RATE = 1200


class Account:
    def __init__(self, limit=0):
        self.cents = 0
        self.limit = limit

    def deposit(self, cents):
        self.cents += cents

    def withdraw(self, cents):
        """Take money; raise if the limit does not allow it."""
        if self.cents - cents <= -self.limit:
            raise ValueError("over the limit")
        self.cents -= cents

    def close_month(self):
        """Add a month's interest, or take it from an overdrawn account."""
        rate = SAVING_RATE if self.cents > 0 else OVERDRAFT_RATE
        self.cents += interest(self.cents, rate, 30)
