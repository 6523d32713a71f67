"""The model table: exact names, patterns, refusals, and errors that say what to write instead."""

import re

import pytest

from engine.models import (
    MAX_NAME_CHARACTERS,
    SIMULATED_CONTEXT_TOKENS,
    ModelEntry,
    ModelTable,
)
from protocol.errors import RemoteProtocolError

TABLE = b"""
[[model]]
pattern = "gpt-*"
sampler = "paced"

[[model]]
name = "gpt-demo"
sampler = "scripted"
context_tokens = 4096
capabilities = ["tools"]
created = 1764967971

[[model]]
pattern = "gpt-d*"
sampler = "never"
"""


@pytest.mark.parametrize("name", ["test-model", "demo", "gpt-5", "m" * MAX_NAME_CHARACTERS])
def test_the_built_in_table_serves_any_name(name):
    """Without a file each name is a model of its own on the default sampler."""
    entry = ModelTable.built_in().find(name)
    assert ModelEntry(name=name, sampler=None, context_tokens=SIMULATED_CONTEXT_TOKENS) == entry


def test_an_exact_name_wins_over_an_earlier_pattern():
    """A model with its own entry gets all of that entry."""
    expected = ModelEntry(
        name="gpt-demo",
        sampler="scripted",
        context_tokens=4096,
        capabilities=frozenset({"tools"}),
        created=1764967971,
    )
    assert expected == ModelTable.from_toml(TABLE).find("gpt-demo")


def test_the_first_pattern_wins():
    """Of two patterns that fit, the earlier in the file decides; the entry has the name asked for."""
    entry = ModelTable.from_toml(TABLE).find("gpt-deluxe")
    expected = ("gpt-deluxe", "paced")
    assert expected == (entry.name, entry.sampler)


def test_only_named_entries_are_listed():
    """A pattern stands for no single model, so the list leaves it out."""
    expected = ["gpt-demo"]
    assert expected == [entry.name for entry in ModelTable.from_toml(TABLE).named]


def test_an_unknown_model_is_not_found():
    """A name that no entry serves is refused with the catalogue's 404 and the names there are."""
    with pytest.raises(RemoteProtocolError) as refused:
        ModelTable.from_toml(TABLE).find("llama")
    message = "The model 'llama' does not exist. Known here: gpt-*, gpt-demo, gpt-d*."
    expected = ("model_not_found", message, "model", 404)
    error = refused.value
    assert expected == (error.code, error.message, error.param, error.status)


def test_a_long_list_of_names_is_shortened():
    """A refusal is no catalogue: the first twenty names, and how many more."""
    table = ModelTable(tuple(ModelEntry(name=f"m{number}") for number in range(23)))
    with pytest.raises(RemoteProtocolError, match=r"Known here: m0, m1, .*, m19 and 3 more\.$"):
        table.find("gone")


def test_the_default_serves_whoever_nobody_serves():
    """An unknown name is a model of its own with all of the default entry; known ones stay what they are."""
    table = ModelTable.from_toml(
        b'[[model]]\nname = "a"\n[[model]]\nname = "b"\ncreated = 7\ndefault = true\n'
    )
    assert [("a", 0), ("b", 7), ("gone", 7)] == [
        (entry.name, entry.created) for entry in map(table.find, ("a", "b", "gone"))
    ]


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, None),
        ({"sampler": "paced"}, "paced"),
        ({"sampler": "llama:smollm2", "format": "chatml"}, "llama:smollm2?format=chatml"),
        (
            {"sampler": "vllm:http://h?model=m", "format": "chatml", "tokenizer": "/a b/q.gguf"},
            "vllm:http://h?model=m&format=chatml&tokenizer=%2Fa+b%2Fq.gguf",
        ),
    ],
)
def test_format_and_tokenizer_are_part_of_how_a_sampler_is_made(fields, spec):
    """Two entries with the same server and another format have samplers of their own."""
    assert spec == ModelEntry(name="m", **fields).spec


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARACTERS + 1)])
def test_a_name_that_cannot_be_one_is_refused_without_echo(name):
    """Empty and overlong names are invalid even where every name is served."""
    with pytest.raises(RemoteProtocolError, match=r"^Invalid value for 'model'\.$"):
        ModelTable.built_in().find(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[[model]\n",
            "not a TOML file: Expected ']]' at the end of an array declaration (at line 1, column 8)",
        ),
        ("models = 1", "unknown key 'models'; the file holds [[model]] entries only"),
        ("", "no [[model]] entries; write at least one"),
        ("model = []", "no [[model]] entries; write at least one"),
        ("model = 'demo'", "no [[model]] entries; write at least one"),
        (
            "[[model]]\nname='a'\n[[model]]\nnames='b'",
            "entry 2: unknown key 'names'; known are name, pattern, sampler",
        ),
        ("[[model]]\nsampler='paced'", "entry 1: needs either 'name' or 'pattern'"),
        ("[[model]]\nname='a'\npattern='b*'", "entry 1: needs either 'name' or 'pattern'"),
        (
            "[[model]]\nname='gpt-*'",
            "name must be a text without any of * ? [ (use 'pattern' for those), not 'gpt-*'",
        ),
        (
            "[[model]]\npattern='gpt'",
            "pattern must be a text with any of * ? [ (use 'name' for a single model)",
        ),
        ("[[model]]\nname=''", "name must be a text"),
        (
            "[[model]]\nname='a'\nsampler=''",
            "sampler must be a text, or left out for the server's default, not ''",
        ),
        ("[[model]]\nname='a'\ncontext_tokens=0", "context_tokens must be a whole number above 0, not 0"),
        (
            "[[model]]\nname='a'\ncontext_tokens=true",
            "context_tokens must be a whole number above 0, not True",
        ),
        (
            "[[model]]\nname='a'\ncapabilities=['fly']",
            "capabilities must be a list out of ['images', 'reasoning', ",
        ),
        ("[[model]]\nname='a'\ncreated=1.5", "created must be whole seconds since 1970, not 1.5"),
        ("[[model]]\nname='a'\n[[model]]\nname='a'", "entry 2: 'a' is already entry 1; remove one"),
        (
            "[[model]]\nname='a'\ndefault=true\n[[model]]\nname='b'\ndefault=true",
            "entry 2: entry 1 is the default already; only one can be",
        ),
        ("[[model]]\nname='a'\ndefault=1", "default must be true or false, not 1"),
        ("[[model]]\nname='a'\nformat='chatml'", "format needs a sampler over tokens"),
        ("[[model]]\nname='a'\ntokenizer='qwen3'", "tokenizer needs a sampler over tokens"),
        ("[[model]]\nname='a'\nsampler='x'\nformat=''", "format must be a text, such as 'chatml'"),
        ("[[model]]\nname='a'\ntokens_per_second=0", "tokens_per_second must be a number above 0, not 0"),
        ("[[model]]\nname='a'\ntokens_per_second=nan", "tokens_per_second must be a number above 0, not nan"),
        ("[[model]]\nname='a'\ninput_price=-1", "input_price must be a number, 0 or above, not -1"),
        ("[[model]]\nname='a'\noutput_price=true", "output_price must be a number, 0 or above, not True"),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_way_out(tmp_path, content, message):
    """Each mistake names the file, the entry, the key and what would be right."""
    path = tmp_path / "models.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        ModelTable.from_toml(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_file_that_is_not_text_is_refused():
    """Bytes that are not UTF-8 are no TOML."""
    with pytest.raises(ValueError, match="model table: not a TOML file"):
        ModelTable.from_toml(b"\xff")
