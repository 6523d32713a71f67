"""`suspended models` prints a table of models, and says what is wrong with one."""

import io
import sys

import pytest

from engine.cli import main
from engine.models_command import models
from engine.samplers.chat import NOTICE
from tests.command import suspended
from tests.test_byte_pairs import SMALL, gguf
from tests.test_gguf import model, tensor

TABLE = """
[[model]]
name = "small"
sampler = "llama:smollm2"
context_tokens = 8192
capabilities = ["tools"]
prefill_tokens_per_second = 219.0
tokens_per_second = 54.8
input_price = 0
output_price = 1.5

[[model]]
pattern = "gpt-*"
format = "chatml"
tokenizer = "qwen3"
sampler = "vllm:http://h"
default = true
"""


def test_each_entry_is_a_line(tmp_path):
    """Names, how they are run, and the hints; a dash where nothing was said."""
    path, out = tmp_path / "models.toml", io.StringIO()
    path.write_text(TABLE)
    assert 0 == models(path, out)
    head, *lines = [line.split("  ") for line in out.getvalue().splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert "name" == head[0]
    assert [
        ["small", "llama:smollm2", "-", "-", "8,192", "219 / 54.8", "0 / - / 1.5", "tools"],
        [
            "gpt-* (default)",
            "vllm:http://h",
            "chatml",
            "qwen3",
            "131,072",
            "-",
            "-",
            "images reasoning tools",
        ],
    ] == cells


def test_a_model_that_keeps_nothing_warm_is_named(tmp_path):
    """Below the table, in a sentence; of the others nothing is said."""
    path, out = tmp_path / "models.toml", io.StringIO()
    path.write_text(f'{TABLE}[[model]]\nname = "chatty"\nsampler = "chat:http://h/v1"\n')
    models(path, out)
    said = [line for line in out.getvalue().splitlines() if "warm" in line]
    assert said == [f"chatty: {NOTICE}"]


@pytest.mark.parametrize(
    ("command", "words"),
    [("model", "the weights are not here, or could not be fetched"), ("models", "the file cannot be read")],
)
def test_help_says_what_its_own_exit_codes_mean(capsys, command, words):
    """What failed is what this command does; no rollout and no tests."""
    assert 0 == main([command, "--help"])
    assert f"  1    {words}\n" in capsys.readouterr().out


def test_without_a_file_it_is_the_built_in_table(capsys):
    """Any name, on the server's own sampler."""
    assert 0 == main(["models"])
    assert "*     the server's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [("[[model]]\nname = 7\n", "entry 1: name must be a text"), (None, "No such file")],
)
def test_a_table_that_cannot_be_read_is_wrong_usage(tmp_path, capsys, content, message):
    """The exit code says so, and the message where and why."""
    path = tmp_path / "models.toml"
    if content is not None:
        path.write_text(content)
    code = main(["models", "--models", str(path)])
    assert code == (2 if content is not None else 1)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nosuch", "--model: llama: no weights are called 'nosuch'"),
        ("http://127.0.0.1:1", "--model: which format does the model speak?"),
    ],
)
def test_a_demo_of_a_model_that_cannot_be_run_says_what_to_do(capsys, model, message):
    """Wrong usage, before anything is started."""
    assert 2 == main(["demo", "--model", model])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file; it should begin with the letters GGUF"),
        (b"# a model card", "not a GGUF file; it should begin with the letters GGUF"),
        (b"GGUF\x03\x00", "the metadata is cut off or damaged"),
        (b"GGUF" + bytes(20), "GGUF version 0; versions 2 and 3 can be read: convert the file again"),
    ],
)
def test_a_file_that_is_no_model_is_wrong_usage(tmp_path, capsys, content, message):
    """The demo names the file and what is wrong with it in one line."""
    pytest.importorskip("xllamacpp", reason="the demo says first that the engine is missing")
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    assert 2 == main(["demo", "--model", str(path)])
    said = capsys.readouterr().err
    assert (True, True, 1) == (message in said, str(path) in said, said.count("\n"))


@pytest.mark.parametrize(
    "command", [["demo", "--model", "PATH"], ["serve", "--port", "0", "--sampler", "llama:PATH"]]
)
def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path, command):
    """A file that is whole, and that llama.cpp refuses: its own words, no traceback, no further try, and exit code 1."""
    pytest.importorskip("xllamacpp", reason="needs the extra [local]")
    path = tmp_path / "empty.gguf"
    path.write_bytes(gguf(SMALL))
    ended = suspended(*(word.replace("PATH", str(path)) for word in command))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended.stderr
    assert "llama.cpp: it ended with exit code 1 before it was up: llama_model_load: error" in ended.stderr


def test_a_table_with_a_model_that_cannot_be_loaded_is_not_served(tmp_path):
    """One of its models is enough."""
    pytest.importorskip("xllamacpp", reason="needs the extra [local]")
    path, table = tmp_path / "empty.gguf", tmp_path / "models.toml"
    path.write_bytes(gguf(SMALL))
    table.write_text(f'[[model]]\nname = "a"\n[[model]]\nname = "b"\nsampler = "llama:{path}"\n')
    ended = suspended("serve", "--port", "0", "--models", table)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended.stderr
    assert "before it was up" in ended.stderr


def test_a_model_that_is_cut_short_is_wrong_usage(tmp_path, capsys, monkeypatch):
    """In the demo and in a server, before anything is started."""
    pytest.importorskip("xllamacpp", reason="what is missing then is the engine")
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "cut.gguf"
    path.write_bytes(model(tensor(0, 0, 8), metadata=SMALL, data=bytes(31)))
    for command in (["demo", "--model", str(path)], ["serve", "--sampler", f"llama:{path}"]):
        assert 2 == main(command)
        said = capsys.readouterr().err
        assert (said.count("\n"), f"{path}: the file is cut short: " in said) == (1, True), said
