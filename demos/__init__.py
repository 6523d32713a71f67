"""Small stories of suspended responses; each runs with `python -m demos.NAME`."""
