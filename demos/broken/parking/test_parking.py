import unittest

from parking import change, fee, started_hours


class StartedHours(unittest.TestCase):
    def test_an_hour_is_an_hour(self):
        self.assertEqual(started_hours(60), 1)

    def test_a_begun_hour_counts(self):
        self.assertEqual(started_hours(61), 2)


class Fee(unittest.TestCase):
    def test_a_short_stay_is_free(self):
        self.assertEqual(fee(10), 0)

    def test_fifteen_minutes_are_still_free(self):
        self.assertEqual(fee(15), 0)

    def test_one_hour(self):
        self.assertEqual(fee(45), 200)

    def test_three_hours(self):
        self.assertEqual(fee(180), 600)

    def test_a_day_has_a_highest_fee(self):
        self.assertEqual(fee(23 * 60), 1500)

    def test_two_days_and_an_hour(self):
        self.assertEqual(fee(2 * 24 * 60 + 60), 3200)


class Change(unittest.TestCase):
    def test_nothing_back_if_paid_exactly(self):
        self.assertEqual(change(200, 60), 0)

    def test_the_rest_comes_back(self):
        self.assertEqual(change(1000, 120), 600)

    def test_too_little(self):
        with self.assertRaises(ValueError):
            change(100, 60)


if __name__ == "__main__":
    unittest.main()
