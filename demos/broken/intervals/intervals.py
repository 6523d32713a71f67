"""Half-open intervals of time: (start, end), the end not included."""


def overlaps(first, second):
    """Return whether two intervals share a moment."""
    return first[0] < second[1] and second[0] <= first[1]


def merged(intervals):
    """Return the same moments in as few intervals as possible, in order; those that touch become one."""
    result = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], min(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def total(intervals):
    """Return how long the intervals are together, counting no moment twice."""
    return sum(end - start for start, end in merged(intervals))


def gaps(intervals, start, end):
    """Return the free intervals between start and end."""
    free = []
    for busy_start, busy_end in merged(intervals):
        if busy_start > start:
            free.append((start, min(busy_start, end)))
        start = max(start, busy_end)
    if start < end:
        free.append((start, end))
    return free
