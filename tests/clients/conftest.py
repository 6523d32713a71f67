"""Where the clients are, and that nothing they were sent is out of order.

Where a client is missing its tests are skipped, but in CI that is a failure.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.clients.order import responses_checked
from tests.clients.served import ROOT, RUNNING

CODEX_VERSION = "0.107.0"
NEW_CODEX_VERSION = "0.171.0"
CODEX_VARIABLES = {CODEX_VERSION: "CODEX_BINARY", NEW_CODEX_VERSION: "NEW_CODEX_BINARY"}
NODE_CACHED = ROOT / ".cache/clients/node/node_modules/node/bin/node"
LEAST_NODE = 22
PASSED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """More marks beside `clients`."""
    config.addinivalue_line("markers", "nightly: a client that is not run for every change (`-m nightly`)")
    config.addinivalue_line("markers", "eventless: no server says anything in this test, nor did before it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether the test itself passed, for `order`: of one that was skipped nothing is expected."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def order(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: all that was recorded is in order by the rules, and something was recorded.

    A test that looks at a `run` that is over records nothing more: it was held against the rules when it ended.
    """
    before = responses_checked()
    yield
    passed = request.node.stash.get(PASSED, False)
    for served in RUNNING:  # for several tests; the others have ended, and been checked then
        if passed:
            served.wait_until_idle()
        served.recording.check()
    looks_back = "run" in request.fixturenames and "served" not in request.fixturenames
    if not passed or looks_back or request.node.get_closest_marker("eventless"):
        return
    if responses_checked() == before:
        pytest.fail(
            "no response was recorded: is there a server without a trace? If none is meant: eventless"
        )


def missing(what: str) -> NoReturn:
    """Skip, but in CI fail: there the clients are the point."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def find_codex(version: str) -> Path:
    """The Codex CLI of a version."""
    folder, variable = f".cache/clients/codex-{version}", CODEX_VARIABLES[version]
    path = Path(os.environ.get(variable) or ROOT / folder / "node_modules/.bin/codex")
    if not path.exists():
        missing(f"no Codex at {path}: npm i --prefix {folder} @openai/codex@{version}, or set {variable}")
    return path


@pytest.fixture(scope="session")
def codex() -> Path:
    """Codex CLI of the one version that speaks the append form."""
    return find_codex(CODEX_VERSION)


@pytest.fixture(scope="session")
def new_codex() -> Path:
    """The newest Codex CLI."""
    return find_codex(NEW_CODEX_VERSION)


def installed(module: str, package: str) -> None:
    """A package that is no dependency of the other tests."""
    if importlib.util.find_spec(module) is None:
        missing(f"{package} is not installed: pip install -e '.[test,clients]'")


@pytest.fixture(scope="session")
def openai_agents() -> None:
    """openai-agents, by the name `agents`."""
    installed("agents", "openai-agents")


@pytest.fixture(scope="session")
def pydantic_ai() -> None:
    """pydantic-ai-slim."""
    installed("pydantic_ai", "pydantic-ai-slim")


@pytest.fixture(scope="session")
def node() -> Path:
    """A Node that the packages do with: one that is named, npm's own, or the machine's."""
    found = os.environ.get("NODE_BINARY") or (NODE_CACHED if NODE_CACHED.exists() else shutil.which("node"))
    how = "npm i --prefix .cache/clients/node node@24, or set NODE_BINARY"
    if found is None:
        missing(f"no Node: {how}")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < LEAST_NODE:
        missing(f"Node {version} at {found} is too old, {LEAST_NODE} is needed: {how}")
    return Path(found)


@pytest.fixture(scope="session")
def node_modules() -> Callable[..., Path]:
    """The folder of npm's packages, once it is clear that some are in it."""
    folder = Path(os.environ.get("NODE_CLIENTS") or ROOT / ".cache/clients/js/node_modules")

    def having(*packages: str) -> Path:
        for package in packages:
            if not (folder / package).exists():
                missing(f"no {package} in {folder}: .ci/run says what to install, or set NODE_CLIENTS")
        return folder

    return having
