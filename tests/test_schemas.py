"""engine.schemas: what is a JSON schema, by the words of another checker, and that nothing is ever fetched."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import validator_for

from engine.schemas import MAX_DEPTH, fault_of, validator_of

DRAFTS = [
    None,
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
]
scalars = st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["", "string", "integer", "x"])
types = st.sampled_from(
    ["string", "object", "array", "objekt", 5, ["string", "null"], ["string", "string"], []]
)
names = st.sampled_from(["a", "b", "type"])


def schemas(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Schemas that are mostly right, and a member that is not now and then."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": types,
            "properties": st.dictionaries(names, inner, max_size=2) | scalars,
            "required": st.lists(names, max_size=2, unique=True) | scalars,
            "items": inner | st.lists(inner, max_size=2),
            "additionalProperties": inner | scalars,
            "minLength": scalars,
            "multipleOf": st.integers(-1, 2),
            "enum": st.lists(scalars, min_size=1, max_size=2, unique_by=repr) | scalars,
            "anyOf": st.lists(inner, min_size=1, max_size=2) | scalars,
            "not": inner,
            "description": scalars,
            "default": scalars,
        },
    )


any_schema = st.recursive(st.booleans() | schemas(st.just({})), schemas, max_leaves=8).filter(
    lambda drawn: isinstance(drawn, dict)
)


@given(any_schema, st.sampled_from(DRAFTS))
def test_what_is_a_schema_here_is_one_elsewhere(schema, draft):
    """Of each dialect, as the reference of Python's has it."""
    if draft is not None:
        schema = {"$schema": draft, **schema}
    others = validator_for(schema, default=jsonschema.Draft202012Validator)
    assert (fault_of(schema) is None) == others(others.META_SCHEMA).is_valid(schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"properties": {"a": {"items": {"minLength": -1}}}},
            "'minimum' fails at '.properties.a.items.minLength'.",
        ),
        ({"anyOf": [{}, {"type": "objekt"}]}, "'anyOf' fails at '.anyOf[1].type'."),
        ({"pattern": "("}, "'format' fails at '.pattern'."),
        ({"$schema": [1]}, "'type' fails at '.$schema'."),
    ],
)
def test_a_fault_is_named_with_its_place(schema, words):
    """The rule, and the way to where it is broken."""
    assert words == fault_of(schema)


@pytest.mark.parametrize("pattern", [r"^\p{L}+$", r"(?<year>\d{4})", r"\cA", "^[a-z]+$"])
def test_patterns_are_those_of_the_standard(pattern):
    """ECMAScript's, of which Python's compiler refuses some: generators of schemas write them."""
    assert fault_of({"type": "string", "pattern": pattern}) is None


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("((((a{1000}){1000}){1000}){1000})", None),
        ("(" * 30_000 + ")" * 30_000, None),
        ("[" * 60_000, "'format' fails at '.pattern'."),
    ],
    ids=["repetitions", "groups", "classes"],
)
def test_a_pattern_is_read_and_not_unfolded(pattern, words):
    """What would be too large for a machine, or too deep for a stack, is judged like any other."""
    assert words == fault_of({"pattern": pattern})


@pytest.mark.parametrize("where", ["http://127.0.0.1:9/schema", "#/$defs/a b", "::"])
def test_a_reference_of_a_client_is_not_followed(where):
    """Wherever it leads, and however it is spelled."""
    assert fault_of({"$ref": where}) is None


def test_depth_has_a_bound():
    """At the bound it is a schema, above it is refused, through lists as through objects."""
    deep = {}
    for _ in range(MAX_DEPTH - 1):
        deep = {"not": deep}
    assert fault_of(deep) is None
    assert fault_of({"not": deep}) == "the schema is nested too deeply."
    assert fault_of({"allOf": [deep]}) == "the schema is nested too deeply."


def test_a_hosted_tools_schema_stands_alone():
    """Nothing is fetched for it: that is found at the start; a place of its own may be referred to."""
    with pytest.raises(ValueError, match="none is fetched"):
        validator_of({"$ref": "http://127.0.0.1:9/schema"})
    own = validator_of({"$defs": {"n": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/n"}}})
    assert [True, False] == [own.is_valid({"n": 1}), own.is_valid({"n": "1"})]
