"""Agents without a model: programs that decide what to do from what their tools answer."""
