"""Where the suite is. A plain run skips these tests; `-m rfc6455` means them, and then in CI it must be there."""

import os
from pathlib import Path

import pytest

from tests.rfc6455.suite import Suite

INSTALLED = Path(__file__).resolve().parents[2] / ".cache/rfc6455/bin/kosoku"
VARIABLE = "KOSOKU"
HOW = (
    "python -m venv .cache/rfc6455 && .cache/rfc6455/bin/pip install --require-hashes -r .ci/rfc6455.txt, "
    f"or set {VARIABLE}; then pytest tests/rfc6455 -m rfc6455"
)


def pytest_configure(config: pytest.Config) -> None:
    """The mark of these tests."""
    config.addinivalue_line("markers", "rfc6455: runs the Autobahn cases (.ci/run selects them)")


@pytest.fixture
def suite(request: pytest.FixtureRequest, tmp_path: Path) -> Suite:
    """The suite, with a place for its reports."""
    command = Path(os.environ.get(VARIABLE) or INSTALLED)
    if "rfc6455" not in request.config.option.markexpr:
        pytest.skip(f"a step of its own: {HOW}")
    if not command.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no kosoku at {command}: {HOW}")
    return Suite(command, tmp_path)
