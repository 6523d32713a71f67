"""Whose model state stays in memory while its rollout waits, and who makes room for whom."""
