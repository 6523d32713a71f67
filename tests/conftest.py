"""For all tests: how hard Hypothesis tries, which tests a plain run leaves out, and that Ctrl-C is what it is in a terminal."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# No deadline anywhere: a loaded machine is no failure.
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
LEFT_OUT = ("clients", "models", "benches")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_configure() -> None:
    """A shell starts what runs in its background with Ctrl-C ignored, and each command that is tested would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes or needs more than this checkout, unless `-m` says which tests are meant."""
    if config.option.markexpr:
        return
    left_out = [item for item in items if any(map(item.get_closest_marker, LEFT_OUT))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
