"""What a stay in the car park costs. All amounts are in cents."""

FREE_MINUTES = 15
CENTS_PER_HOUR = 200
CENTS_PER_DAY = 1500
MINUTES_PER_DAY = 24 * 60


def started_hours(minutes):
    """Return the hours to pay for: each hour that was begun counts."""
    return (minutes + 60) // 60


def fee(minutes):
    """Return the fee of a stay: nothing for a short one, and never more than a day's fee for a day."""
    if minutes < FREE_MINUTES:
        return 0
    days = minutes // MINUTES_PER_DAY
    rest = minutes % MINUTES_PER_DAY
    return days * CENTS_PER_DAY + max(started_hours(rest) * CENTS_PER_HOUR, CENTS_PER_DAY)


def change(paid, minutes):
    """Return what the machine gives back; raise if too little was paid."""
    due = fee(minutes)
    if paid < due:
        raise ValueError(f"{due - paid} cents are missing")
    return paid - due
