"""Codex CLI, its folders and its settings."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from tests.clients.served import Served

SAMPLER = "policy:demos.agents.shell"
CONFIG = """
model = "test-model"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.local]
name = "local"
base_url = "http://{address}"
env_key = "LOCAL_KEY"
wire_api = "responses"
supports_websockets = {websockets}
stream_idle_timeout_ms = 60000
stream_max_retries = {retries}
request_max_retries = {retries}

[analytics]
enabled = false
"""
FEATURE = """
[features]
{name} = true
"""


def config_of(address: str, form: str, *, feature: str | None = None, retries: int = 0) -> str:
    """Settings of a Codex that speaks a form; before it knew but one, a feature named it."""
    websockets = "false" if form == "http" else "true"
    config = CONFIG.format(address=address, websockets=websockets, retries=retries)
    return config + (FEATURE.format(name=feature) if feature else "")


@attrs.frozen
class Home:
    """Folders of a Codex that knows one server."""

    work: Path
    environment: dict[str, str]

    @classmethod
    def make(cls, folder: Path, config: str) -> "Home":
        """Make them in a folder."""
        home, work = folder / "home", folder / "work"
        home.mkdir()
        work.mkdir()
        (home / "config.toml").write_text(config)
        environment = {
            "CODEX_HOME": str(home),
            "HOME": str(home),
            "LOCAL_KEY": "sk-test",
            "KEY": "sk-test",
            "PATH": os.environ["PATH"],
            "LC_ALL": "C",
        }
        return cls(work, environment)

    def files(self) -> dict[str, str]:
        """What was written, by name."""
        found = (path for path in self.work.rglob("*") if path.is_file())
        return {str(path.relative_to(self.work)): path.read_text() for path in found}


def command_line(codex: Path, *commands: str) -> list[str | Path]:
    """A non-interactive run with a prompt that holds these commands."""
    prompt = "Please run:\n" + "\n".join(f"$ {command}" for command in commands)
    return [codex, "exec", "--skip-git-repo-check", prompt]


def run_codex(
    served: Served, home: Home, command: Sequence[str | Path]
) -> "subprocess.CompletedProcess[str]":
    """Run Codex to its end, which must be a good one."""
    completed = served.run_command("the end of Codex", command, cwd=home.work, env=home.environment)
    if completed.returncode != 0:
        served.fail(f"success of Codex, which ended with {completed.returncode}: {completed.stderr}")
    return completed


@contextmanager
def running_codex(home: Home, command: Sequence[str | Path], log: Path) -> Iterator["subprocess.Popen[Any]"]:
    """Codex at work, in a group of its own; what it says goes to a file."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=home.work,
            env=home.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # its first process is a wrapper, so the group is meant
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
