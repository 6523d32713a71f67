"""What to order, and in which packs."""


def to_order(inventory, minimum):
    """Return the names, in order, of what is scarce; what is discontinued is not ordered again."""
    return sorted(
        name
        for name in inventory.stock
        if name in inventory.discontinued and inventory.available(name) < minimum
    )


def packs(count, pack_size):
    """Return how many packs hold at least so many pieces."""
    return (count + pack_size) // pack_size
