"""What stands for a model: the promise in `base`, and who keeps it."""
