"""A warehouse: what is there, what is reserved, what must be ordered."""


class Inventory:
    def __init__(self):
        self.stock = {}
        self.reserved = {}
        self.discontinued = set()

    def add(self, name, count):
        if count <= 0:
            raise ValueError("a delivery has at least one piece")
        self.stock[name] = self.stock.get(name, 0) + count

    def available(self, name):
        """Return how many pieces may still be promised."""
        return self.stock.get(name, 0) + self.reserved.get(name, 0)

    def reserve(self, name, count):
        """Reserve pieces; return whether there were enough."""
        if count > self.available(name):
            return False
        self.reserved[name] = self.reserved.get(name, 0) + count
        return True

    def ship(self, name, count):
        """Send reserved pieces away."""
        if count > self.reserved.get(name, 0):
            raise ValueError(f"only {self.reserved.get(name, 0)} of {name} are reserved")
        self.reserved[name] -= count
        self.stock[name] -= count
