import unittest

from inventory import Inventory
from orders import packs, to_order


class Stock(unittest.TestCase):
    def setUp(self):
        self.inventory = Inventory()
        self.inventory.add("bolt", 10)
        self.inventory.add("nut", 3)

    def test_all_is_available(self):
        self.assertEqual(self.inventory.available("bolt"), 10)

    def test_reserved_is_not_available(self):
        self.assertTrue(self.inventory.reserve("bolt", 4))
        self.assertEqual(self.inventory.available("bolt"), 6)
        self.assertFalse(self.inventory.reserve("bolt", 7))

    def test_ship(self):
        self.inventory.reserve("bolt", 4)
        self.inventory.ship("bolt", 3)
        self.assertEqual(self.inventory.stock["bolt"], 7)
        self.assertEqual(self.inventory.reserved["bolt"], 1)

    def test_only_reserved_pieces_are_shipped(self):
        with self.assertRaises(ValueError):
            self.inventory.ship("nut", 1)

    def test_nothing_cannot_be_delivered(self):
        with self.assertRaises(ValueError):
            self.inventory.add("nut", 0)

    def test_scarce_things_are_ordered(self):
        self.assertEqual(to_order(self.inventory, 5), ["nut"])

    def test_discontinued_things_are_not_ordered(self):
        self.inventory.discontinued.add("nut")
        self.assertEqual(to_order(self.inventory, 5), [])


class Packs(unittest.TestCase):
    def test_whole_packs(self):
        self.assertEqual(packs(20, 10), 2)

    def test_a_part_of_a_pack(self):
        self.assertEqual(packs(21, 10), 3)


if __name__ == "__main__":
    unittest.main()
