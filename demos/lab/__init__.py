"""`suspended lab`: the same rollout in every form, measured in pairs, explained, and reproducible from its files."""
