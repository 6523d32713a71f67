"""Where a run happens: commit, code, versions and machine, so that a figure can be judged by who reads it later.

The machine's name is left out: a result file is meant to be published.
"""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from demos.lab.fingerprint import CHECKOUT, fingerprint
from demos.lab.records import Environment, Host

OURS: Final = "suspended-response"
GIT_SECONDS: Final = 10.0
"""A `git status` of this checkout takes far less; a hanging one must not hold up a run."""


def environment(checkout: Path = CHECKOUT) -> Environment:
    """Of this process. Never raises: what cannot be found out is `unknown`."""
    commit = _git(checkout, "rev-parse", "HEAD") if _is_checkout(checkout) else None
    dirty = commit is not None and _git(checkout, "status", "--porcelain") != ""
    return Environment(
        commit=commit or "unknown",
        dirty=dirty,
        versions=versions(),
        host=host(),
        code=fingerprint(checkout),
    )


def versions(extra: Iterable[str] = ("numpy", "matplotlib")) -> Mapping[str, str]:
    """Of our distribution and of those it needs, as far as they are installed."""
    names = {OURS, *extra, *_required()}
    found = {name: _version(name) for name in sorted(names)}
    return {name: version for name, version in found.items() if version is not None}


def host() -> Host:
    """The machine, as far as it shows in figures."""
    return Host(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        cpu=_cpu(Path("/proc/cpuinfo")),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _required() -> list[str]:
    try:
        lines = importlib.metadata.requires(OURS) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [re.split(r"[\[<>=~! ;]", line)[0] for line in lines if "extra ==" not in line]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu(cpuinfo: Path) -> str:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return platform.processor() or "unknown"
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or "unknown"


def _is_checkout(directory: Path) -> bool:
    """Is it the root of one? A package installed somewhere inside another project's checkout has no commit."""
    root = _git(directory, "rev-parse", "--show-toplevel")
    return root is not None and Path(root).resolve() == directory.resolve()


def _git(directory: Path, *arguments: str) -> str | None:
    """What git says, or None: no git, no checkout, no answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
