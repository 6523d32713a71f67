import unittest

from booking import Room
from intervals import gaps, merged, overlaps, total


class Intervals(unittest.TestCase):
    def test_neighbours_do_not_overlap(self):
        self.assertTrue(overlaps((1, 3), (2, 4)))
        self.assertFalse(overlaps((3, 5), (1, 3)))
        self.assertFalse(overlaps((1, 3), (3, 5)))

    def test_neighbours_become_one(self):
        self.assertEqual(merged([(3, 5), (1, 3)]), [(1, 5)])

    def test_an_interval_inside_another_adds_nothing(self):
        self.assertEqual(merged([(1, 9), (2, 3)]), [(1, 9)])

    def test_apart_stay_apart(self):
        self.assertEqual(merged([(5, 6), (1, 2)]), [(1, 2), (5, 6)])

    def test_total_counts_no_moment_twice(self):
        self.assertEqual(total([(0, 4), (2, 6), (8, 9)]), 7)

    def test_gaps(self):
        self.assertEqual(gaps([(2, 3), (5, 6)], 0, 8), [(0, 2), (3, 5), (6, 8)])


class Rooms(unittest.TestCase):
    def test_two_bookings_in_a_row(self):
        room = Room()
        room.book(8, 10)
        room.book(10, 12)
        self.assertEqual(room.first_free(1), 12)

    def test_taken(self):
        room = Room()
        room.book(8, 10)
        with self.assertRaises(ValueError):
            room.book(9, 11)

    def test_too_long(self):
        room = Room()
        room.book(10, 14)
        self.assertEqual(room.first_free(5), 14)
        self.assertIsNone(room.first_free(7))


if __name__ == "__main__":
    unittest.main()
