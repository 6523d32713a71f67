"""What the README says is generated or run."""

import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from engine.arguments import make_parser
from engine.config import DEFAULT_LIMITS
from engine.samplers.registry import make_sampler
from protocol.dialects import APPEND, CREATE, INJECT
from protocol.invariants import RULES
from protocol.states import diagram
from tests.command import ROOT, environment
from tests.readme import ENDINGS, PARTS, README, sampling_differs, written
from tests.test_demos import LAST_LINES

TEXT = README.read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)[1]


def test_generated_parts_are_current():
    """Writing the generated parts anew changes nothing (`python -m tests.readme` does it)."""
    assert written(TEXT) == TEXT
    assert sorted(re.findall(r"<!-- generated: (\w+) -->", TEXT)) == sorted(PARTS)


@pytest.mark.parametrize("dialect", ["append", "inject"])
def test_diagrams_are_the_tables(dialect):
    """A mermaid fence holds each table's diagram."""
    assert f"{diagram(dialect)}\n" in fences("mermaid")


def test_table_of_endings_is_whole():
    """The table has all endings, and its one column for sampling is true of every dialect."""
    assert set(ENDINGS) == set(APPEND.sampling_endings) | set(APPEND.suspended_endings)
    assert not sampling_differs((APPEND, INJECT, CREATE))


def test_program_prints_what_is_said():
    """The program runs as it stands and prints what the README says it prints; it fits on a screen."""
    program = fences("python")[0]
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert (process.stdout, process.stderr) == (fences("text")[0], "")
    assert len(program.splitlines()) <= 40


def test_other_programs_are_python():
    """What needs packages that are not installed here is Python at least."""
    for program in fences("python")[1:]:
        compile(program, "README.md", "exec")


def test_codex_configuration():
    """The configuration is TOML and switches on the two things that the append form needs."""
    configuration = tomllib.loads(fences("toml")[0])
    provider = configuration["model_providers"][configuration["model_provider"]]
    assert provider["supports_websockets"] is True
    assert configuration["features"] == {"responses_websockets": True}


def test_commands_are_parsed():
    """Each `suspended …` in the README is one the command understands."""
    said = re.findall(r"`(suspended (?:demo|serve|call [A-Z]|tap -|models?)[^`]*)`", TEXT)
    said += [
        line.rpartition("| ")[2] for line in "".join(fences("sh")).splitlines() if "suspended check" in line
    ]
    stand_ins = {
        "DIR": ".",
        "FILE": "f",
        "URL": "http://localhost/v1",
        "NAME=VALUE": "max_lanes=3",
        "SPEC": "paced",
    }
    for words in said:
        argv = [stand_ins.get(word, word) for word in shlex.split(words)[1:]]
        assert make_parser().parse_args(argv).command == argv[0]
    assert len(said) > 9


def test_the_extras_are_there():
    """Each extra that is to be installed is one of the package's."""
    named = {extra for extras in re.findall(r"-e '\.\[([\w,]+)\]'", TEXT) for extra in extras.split(",")}
    assert {"local", "testing"} <= named <= set(PYPROJECT["project"]["optional-dependencies"])


def test_the_rules_are_counted():
    """The checker has as many rules as the README says."""
    assert [str(len(RULES))] == re.findall(r"which of (\d+) rules", TEXT)


@pytest.mark.parametrize("kind", ["llama", "vllm", "chat"])
def test_samplers_of_real_models_are_spelled_so(kind):
    """What is written there makes a sampler, as soon as a server's address stands in it."""
    spec = re.search(rf"`(?:--sampler )?({kind}:http[^`]*)`", section("Real models"))[1]
    assert make_sampler(spec.replace("…", "127.0.0.1:9"), DEFAULT_LIMITS) is not None


def test_dependencies_are_explained():
    """The table names the dependencies of the package, all and only those."""
    named = re.findall(r"^\| `([\w-]+)` \|", section("Dependencies"), re.MULTILINE)
    required = [re.match(r"[\w-]+", line)[0] for line in PYPROJECT["project"]["dependencies"]]
    assert named == required


def test_demos_are_named():
    """The table names all demos."""
    assert re.findall(r"^\| `(\w+)` \|", section("Demos"), re.MULTILINE) == list(LAST_LINES)


def test_reading_order():
    """The files to read are there, in the order that was decided."""
    paths = re.findall(r"^\d\. `([\w/.]+)`", section("Reading order"), re.MULTILINE)
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert [path.split("/")[1] for path in paths] == [
        "states.py",
        "session.py",
        "rollout.py",
        "context.py",
        "connection.py",
    ]
