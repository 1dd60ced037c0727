"""What a schema says holds for every output to the letter, or the schema is refused."""

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from fakes.text.byte_constraints import accepts, constraint_of, drawn_output, why_refused
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.edge.text.constraint.grammar import GrammarRefused, compiled_schema, json_schema_grammar

HUGE = (1 << 53) + 1


def fits(schema: object, text: str) -> bool:
    return accepts(json_schema_grammar(json.dumps(schema)), text)


def refusal(schema: object) -> str:
    try:
        return why_refused(json_schema_grammar(json.dumps(schema)))
    except GrammarRefused as error:
        return str(error)


def names_of(text: str) -> list[str]:
    """Every name of every object, as it is written."""
    written: list[str] = []
    json.loads(text, object_pairs_hook=lambda pairs: written.extend(name for name, _ in pairs))
    return written


NAMED = {"type": "object", "properties": {"a": {"type": "integer"}, "世": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"patternProperties": {".*": {"type": "boolean"}}}, '{"\\u0061":5}'),
        ({"patternProperties": {".*": {"type": "boolean"}}}, '{"\\u0061":true}'),
        (NAMED, '{"a":1,"\\u0061":"x"}'),
        (NAMED, '{"a":1,"\\u4e16":"x"}'),
        (NAMED, '{"a":1,"\\u4E16":"x"}'),
        ({"additionalProperties": False, "patternProperties": {"^[a-z]$": {"type": "integer"}}}, '{"\\u0061":"x"}'),
        ({"anyOf": [NAMED, {"type": "null"}]}, '{"a":1,"\\u0061":"x"}'),
        ({"items": NAMED}, '[{"a":1,"\\u0061":"x"}]'),
        (NAMED | {"x-guidance": {"json_allowed_escapes": 'nu\\"', "json_allow_general_unicode_escapes": True}}, '{"a":1,"\\u0061":"x"}'),
    ],
)
def test_sch_01_an_escaped_name_is_bound_by_what_binds_the_name(schema: dict[str, Any], text: str) -> None:
    assert not fits(schema, text)


def test_sch_01_names_are_written_in_one_way() -> None:
    assert fits(NAMED, '{"a":1,"世":2,"界":"\\"\\n"}') and not fits(NAMED, '{"a":1,"世":"x"}')
    assert fits({"properties": {"a\nb": {"type": "integer"}}}, '{"a\\nb":1}')
    assert not fits({"properties": {"a\nb": {"type": "integer"}}}, '{"a\\u000ab":"x"}')
    assert fits({"properties": {"\x01": {"type": "integer"}}}, '{"\\u0001":1}')


@pytest.mark.parametrize("text", ["\x01", "a\x7f", "\x00b"])
def test_sch_01_a_value_that_needs_an_escape_like_those_is_refused(text: str) -> None:
    assert refusal({"enum": ["x", text]}).startswith("enum: U+00")
    assert refusal({"const": {text: 1}}).startswith("const: U+00")
    assert fits({"enum": ['"\\\b\f\n\r\t/']}, '"\\"\\\\\\b\\f\\n\\r\\t/"')


@pytest.mark.parametrize("schema", [NAMED | {"additionalProperties": {"const": "x"}}, {"patternProperties": {".*": {"type": "boolean"}}}])
def test_sch_01_whatever_is_drawn_is_valid_under_the_names_that_are_meant(schema: dict[str, Any]) -> None:
    grammar = json_schema_grammar(json.dumps(schema))
    for seed in range(20):
        text = drawn_output(constraint_of(grammar), random.Random(seed)).decode()
        jsonschema.validate(json.loads(text), schema)
        bound = set(schema.get("properties", ()))
        assert all(names_of(text).count(name) <= 1 for name in bound)


@pytest.mark.parametrize("number", [123456789012345678, HUGE, -HUGE, 10**400])
@pytest.mark.parametrize("keyword", ["enum", "const"])
def test_sch_02_a_number_that_a_double_does_not_hold_is_refused(number: int, keyword: str) -> None:
    for value in (number, {"a": [number]}):
        assert refusal({keyword: [value] if keyword == "enum" else value}).startswith(f"{keyword}: the number {number} has more digits")
    assert refusal({"properties": {"id": {keyword: [number]}}}).startswith(f"{keyword}: the number")


@pytest.mark.parametrize("number", ["1.00000000000000000001", "0.1000000000000000055511151231257827", "1e400"])
def test_sch_02_so_is_one_with_too_many_digits_behind_the_point(number: str) -> None:
    with pytest.raises(GrammarRefused, match="has more digits than a double keeps"):
        compiled_schema(f'{{"const": {number}}}')


@pytest.mark.parametrize("number", [0, -7, 1 << 53, 1 << 60, 10**18, 1.5, 0.1, 1e-7, 1e22])
def test_sch_02_other_numbers_are_written_as_they_are(number: float) -> None:
    digits = format(Decimal(repr(number)), "f")
    assert fits({"enum": [number]}, digits) and not fits({"enum": [number]}, digits + "1")


def test_sch_02_names_and_annotations_may_look_like_numbers() -> None:
    assert refusal({"properties": {"enum": {"type": "integer"}, "const": {"type": "null"}}, "default": HUGE, "examples": [HUGE]}) == ""


@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
@pytest.mark.parametrize("kind", ["integer", "number", None])
@pytest.mark.parametrize("bound", [HUGE, -HUGE, (1 << 64) - 1, (1 << 53) - 1, 1 << 60, (1 << 63) - 1, 10**16, 7, -7, 2.5, -2.5])
def test_sch_04_a_bound_is_exact_or_refused(keyword: str, kind: str | None, bound: float) -> None:
    schema: dict[str, Any] = {keyword: bound} | ({"type": kind} if kind else {})
    if refusal(schema):
        assert abs(bound) > 1 << 53
        return
    for number in {int(bound) + step for step in (-2, -1, 0, 1, 2)}:
        expected = {
            "minimum": number >= bound,
            "maximum": number <= bound,
            "exclusiveMinimum": number > bound,
            "exclusiveMaximum": number < bound,
        }
        assert fits(schema, str(number)) == expected[keyword], number


@pytest.mark.parametrize(
    "schema", [{"type": "integer", "minimum": HUGE}, {"type": "integer", "maximum": (1 << 64) - 1}, {"minimum": 1 << 55}]
)
def test_sch_04_bounds_that_would_move_are_refused(schema: dict[str, Any]) -> None:
    (keyword,) = schema.keys() - {"type"}
    assert refusal(schema).startswith(f"{keyword}: the number")
    assert refusal({"$ref": "#/elsewhere/x", "elsewhere": {"x": schema}}).startswith(f"{keyword}: the number")


@settings(deadline=None, max_examples=60)
@given(st.integers(-(1 << 70), 1 << 70), st.sampled_from([-1, 0, 1]), st.sampled_from(["minimum", "exclusiveMaximum"]))
def test_sch_04_bounds_at_random(bound: int, step: int, keyword: str) -> None:
    schema = {"type": "integer", keyword: bound}
    if not refusal(schema):
        expected = bound + step >= bound if keyword == "minimum" else bound + step < bound
        assert fits(schema, str(bound + step)) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": {"type": "integer"}, "minProperties": 2},
        {"properties": {"a": {}}, "required": ["a"], "minProperties": 2},
        {"items": {"patternProperties": {"x": {}}, "minProperties": 3}},
    ],
)
def test_sch_05_a_number_of_names_that_one_name_could_reach_is_refused(schema: dict[str, Any]) -> None:
    assert "is more than the required names" in refusal(schema)


@pytest.mark.parametrize("schema", [{"minProperties": 1}, {"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "minProperties": 2}])
def test_sch_05_a_number_of_names_that_are_required_is_not(schema: dict[str, Any]) -> None:
    assert refusal(schema) == ""
    assert not fits(schema, "{}") and fits(schema, '{"a":1,"b":1}')


def test_sch_06_the_refusal_of_one_of_recommends_nothing_that_is_refused() -> None:
    overlapping = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    assert "anyOf lets them" in refusal(overlapping) and "coerce_one_of" not in refusal(overlapping)
    assert fits({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "1")


@pytest.mark.parametrize("name", ["password", "binary", "path", "uri-reference", "int64", "anything"])
def test_sch_06_formats_that_only_annotate_are_ignored(name: str) -> None:
    for schema in ({"type": "string", "format": name}, {"properties": {"a": {"format": name}, "format": {"type": "null"}}}):
        assert refusal(schema) == ""
    assert fits({"items": {"type": "string", "format": name}}, '["x y"]')
    assert fits({"properties": {"format": {"const": name}}}, f'{{"format":"{name}"}}')


def test_sch_06_formats_that_are_known_hold() -> None:
    assert fits({"type": "string", "format": "date"}, '"2023-02-28"') and not fits({"type": "string", "format": "date"}, '"x"')
