import unittest

from account import Account
from rates import grown, interest, years_to_reach


class Interest(unittest.TestCase):
    def test_a_year(self):
        self.assertEqual(interest(10_000, 250, 365), 250)

    def test_a_month(self):
        self.assertEqual(interest(100_000, 120, 30), 99)

    def test_no_time_no_interest(self):
        self.assertEqual(interest(10_000, 250, 0), 0)

    def test_interest_on_interest(self):
        self.assertEqual(grown(10_000, 1000, 2), 12_100)

    def test_years_to_reach(self):
        self.assertEqual(years_to_reach(12_000, 10_000, 1000), 2)


class Accounts(unittest.TestCase):
    def test_withdraw(self):
        account = Account()
        account.deposit(500)
        account.withdraw(200)
        self.assertEqual(account.cents, 300)

    def test_all_may_be_withdrawn(self):
        account = Account(limit=100)
        account.withdraw(100)
        self.assertEqual(account.cents, -100)

    def test_no_more_than_the_limit(self):
        account = Account(limit=100)
        with self.assertRaises(ValueError):
            account.withdraw(101)

    def test_month(self):
        account = Account()
        account.deposit(100_000)
        account.close_month()
        self.assertEqual(account.cents, 100_123)


if __name__ == "__main__":
    unittest.main()
