"""Where the clients are. Where one is missing its tests are skipped, but in CI that is a failure."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.clients.served import ROOT

CODEX_VERSION = "0.107.0"
CODEX_VARIABLE = "CODEX_BINARY"
CODEX_CACHED = ROOT / ".cache/clients/codex/node_modules/.bin/codex"


def missing(what: str) -> NoReturn:
    """Skip, but in CI fail: there the clients are the point."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def codex() -> Path:
    """Codex CLI of the one version that speaks the append form."""
    path = Path(os.environ.get(CODEX_VARIABLE) or CODEX_CACHED)
    if not path.exists():
        missing(
            f"no Codex at {path}: npm i --prefix .cache/clients/codex @openai/codex@{CODEX_VERSION}, "
            f"or set {CODEX_VARIABLE}"
        )
    return path


@pytest.fixture(scope="session")
def openai_agents() -> None:
    """openai-agents, which is no dependency of the other tests."""
    try:
        import agents  # noqa: F401  # only whether it is there
    except ImportError:
        missing("openai-agents is not installed: pip install -e '.[test,clients]'")
