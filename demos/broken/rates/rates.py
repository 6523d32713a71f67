"""Interest and currencies, in whole cents; rates are in hundredths of a percent."""

BASIS_POINTS = 1000
DAYS_PER_YEAR = 365


def interest(cents, rate, days):
    """Return the simple interest, rounded to whole cents."""
    return round(cents * rate * days / (BASIS_POINTS * DAYS_PER_YEAR))


def grown(cents, rate, years):
    """Return the amount after so many years, interest added each year."""
    for _ in range(years):
        cents += interest(cents, rate, DAYS_PER_YEAR)
    return cents


def years_to_reach(goal, cents, rate):
    """Return after how many years the goal is reached, at most a hundred."""
    for years in range(100):
        if cents >= goal:
            return years
        cents = grown(cents, 1, rate)
    return 100
