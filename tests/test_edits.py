"""Every edit of every source parses, and each kind of slip has one that repairs it."""

import ast
import importlib
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.agents.edits import applied, edits
from demos.workshop import BROKEN_PROJECTS

PROJECTS = sorted(path.name for path in BROKEN_PROJECTS.iterdir())


@pytest.mark.parametrize("name", PROJECTS)
def test_all_edits_of_projects_parse(name):
    """Each edit of the broken projects' sources parses and changes the source."""
    for path in (BROKEN_PROJECTS / name).glob("*.py"):
        text = path.read_text()
        results = [applied(text, edit) for edit in edits(text)]
        assert results
        assert text not in results
        for result in results:
            ast.parse(result)


LIBRARY = (
    "bisect",
    "calendar",
    "colorsys",
    "fractions",
    "heapq",
    "shlex",
    "textwrap",
    "types",
)


@given(st.sampled_from(LIBRARY), st.integers(min_value=0))
def test_edits_of_the_library_parse(module, number):
    """Any edit of a module of the standard library parses."""
    text = inspect.getsource(importlib.import_module(module))
    found = edits(text)
    ast.parse(applied(text, found[number % len(found)]))


AWKWARD = [
    "x = not(a)\n",
    "def f(a):\n    return-1\n",
    "def f(a, b):\n    return (a), (b)\n",
    "é = 'ü' * 2; z = f(é, (yield_)) - 1\n",
    "x = [i for i in range(len(y)) if(i)]\n",
    "x = a if b<c else f'{d + 1}'\n",
    "match x:\n    case 1 | -1:\n        y = g((a), [*b])\n",
    "x = (a\n     + 1)\nwhile x[-1] is not None and (y or z):\n    x -= 1\n",
    "if (n := f(a, (b := 2))) % 2 == 0:\r\n    n = n.rstrip().find('x') // (n + 1)\r\n",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_edits_of_awkward_sources_parse(text):
    """Parentheses, missing spaces, wide letters and carriage returns do not lead an edit astray."""
    found = edits(text)
    assert found
    for edit in found:
        ast.parse(applied(text, edit))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a < b\n", "x = a <= b\n"),
        ("x = (a) == (b)\n", "x = (a) != (b)\n"),
        ("x = a and b\n", "x = a or b\n"),
        ("x = not a\n", "x = a\n"),
        ("if a:\n    pass\n", "if not a:\n    pass\n"),
        ("x = a in b\n", "x = a not in b\n"),
        ("x = y[1:n]\n", "x = y[1:n - 1]\n"),
        ("x = range(n)\n", "x = range(n + 1)\n"),
        ("x = n + 1\n", "x = n\n"),
        ("x = f(a, b)\n", "x = f(b, a)\n"),
        ("x = min(a, b)\n", "x = max(a, b)\n"),
        ("x += a\n", "x -= a\n"),
        ("x = 1000\n", "x = 10000\n"),
        ("x = True\n", "x = False\n"),
        ("def f():\n    return a, b\n", "def f():\n    return b, a\n"),
        ("x = a - b\n", "x = b - a\n"),
        ("x = (a + b) // c\n", "x = (a + b - 1) // c\n"),
    ],
)
def test_slips_it_knows(text, expected):
    """Each kind of slip has an edit that repairs it."""
    assert expected in [applied(text, edit) for edit in edits(text)]
