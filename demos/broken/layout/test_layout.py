import unittest

from layout import justified, table, wrapped


class Wrapped(unittest.TestCase):
    def test_short_text_is_one_line(self):
        self.assertEqual(wrapped("a bird", 10), ["a bird"])

    def test_the_space_counts(self):
        self.assertEqual(wrapped("early bird", 9), ["early", "bird"])

    def test_a_line_may_be_full(self):
        self.assertEqual(wrapped("early bird", 10), ["early bird"])

    def test_three_lines(self):
        self.assertEqual(
            wrapped("the early bird catches the worm", 11), ["the early", "bird", "catches the", "worm"]
        )

    def test_no_text_has_no_lines(self):
        self.assertEqual(wrapped("  ", 5), [])


class Justified(unittest.TestCase):
    def test_one_word(self):
        self.assertEqual(justified("bird", 6), "bird  ")

    def test_even(self):
        self.assertEqual(justified("the early bird", 18), "the   early   bird")

    def test_uneven_gaps_are_wider_at_first(self):
        self.assertEqual(justified("the early bird", 17), "the   early  bird")


class Table(unittest.TestCase):
    def test_columns(self):
        self.assertEqual(table([("a", "bcd"), ("ef", "g")]), ["a   bcd", "ef  g"])


if __name__ == "__main__":
    unittest.main()
