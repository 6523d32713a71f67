"""How a llama.cpp backend is written down, and what is said when it is written wrong."""

import struct
import sys

import pytest

from engine.backends.llama_factory import make_llama
from engine.config import Limits


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A file in the place of a model, without weights: nothing here loads it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    return path


@pytest.fixture
def engine_installed():
    pytest.importorskip("xllamacpp", reason="needs the extra [local]")


def test_a_model_run_here(model, engine_installed):
    """A file by its path: what there is room for is known before it runs, and it brings the task that runs it."""
    backend = make_llama(f"{model}?slots=3&context=512&threads=1&batch=64&silence=9", Limits())
    assert (backend.name, backend.context_tokens, backend.kv_tokens) == ("mine", 512, 1536)
    assert (backend.vocabulary, callable(backend.run)) == (model, True)


def test_a_server_somewhere():
    """A URL: nothing is known before it is asked, and no task is needed."""
    backend = make_llama("http://127.0.0.1:8080/base?silence=5", Limits())
    assert (backend.context_tokens, backend.kv_tokens, backend.vocabulary) == (0, 0, None)
    assert not hasattr(backend, "run")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("smollm2", "suspended model fetch smollm2"),
        ("nope", "no weights are called 'nope'; there are: smollm2"),
        ("./nope.gguf", "is no file"),
        ("smollm2?slot=3", "no option 'slot'; there are batch, context, silence, slots, threads"),
        ("http://127.0.0.1:8080?slots=3", "no option 'slots'; there are key, silence"),
        ("http://127.0.0.1:8080?key=NO_SUCH_VARIABLE", "not set"),
        ("MODEL?slots=0", "slots='0' is not a number above 0"),
        ("MODEL?context=1.5", "is not a whole number"),
    ],
)
def test_what_is_written_wrong(model, engine_installed, spec, words):
    """The error says what is wrong, and what there is."""
    with pytest.raises(ValueError, match=words):
        make_llama(spec.replace("MODEL", str(model)), Limits())


def test_a_model_that_is_not_whole(model, engine_installed):
    """It is refused before anything is started, and the error names the file."""
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"mine\.gguf: the metadata is cut off"):
        make_llama(str(model), Limits())


def test_without_the_engine(model, monkeypatch):
    """Who lacks the extra is told how to install it, when the backend is made and not at the first request."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ValueError, match=r"suspended-response\[local\]"):
        make_llama(str(model), Limits())
