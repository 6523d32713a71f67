"""Released clients against the real server. Left out of a plain `pytest`; `.ci/run` installs and runs them."""
