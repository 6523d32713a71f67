"""Bookings of one room, in whole hours of a day."""

from intervals import gaps, overlaps

OPENS, CLOSES = 8, 20


class Room:
    def __init__(self):
        self.bookings = []

    def book(self, start, end):
        """Book the room; raise if it is taken."""
        if any(overlaps((start, end), booking) for booking in self.bookings):
            raise ValueError(f"taken from {start} to {end}")
        self.bookings.append((start, end))

    def first_free(self, hours):
        """Return the earliest start of a booking that long, or None."""
        for start, end in gaps(self.bookings, OPENS, CLOSES):
            if end - start >= hours:
                return start
        return None
