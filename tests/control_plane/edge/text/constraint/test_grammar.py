"""Languages as clients describe them."""

import json

import pytest
from fakes.text.byte_constraints import accepts, allowed_ids, constraint_of, why_refused

from control_plane.edge.text.constraint.grammar import (
    GrammarRefused,
    alternatives_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("text", ["plain", 'a "quoted\\ one', "two\nlines", "tab\t\x01\x7f", "/slash/", "é雨😀", "<eos>", "{}", "' OR"])
def test_an_alternative_is_meant_literally(text: str) -> None:
    grammar = alternatives_grammar(["other", text])
    assert accepts(grammar, text) and accepts(grammar, "other") and not accepts(grammar, text + "x")


def test_alternatives_may_begin_with_each_other() -> None:
    grammar = alternatives_grammar(["yes", "yes, please", "yes"])
    assert accepts(grammar, "yes") and accepts(grammar, "yes, please") and not accepts(grammar, "yes,")


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("[0-9]{3}-x", "123-x", "12-x"),
        ("^a$", "a", "aa"),
        ("a/b", "a/b", "ab"),
        ('"a\\\\"', '"a\\"', '"a"'),
        ("a\nb", "a\nb", "ab"),
        ("(?i)yes", "YeS", "no"),
        ("é+", "éé", "e"),
    ],
)
def test_a_regular_expression_matches_from_end_to_end(pattern: str, fits: str, does_not: str) -> None:
    assert accepts(regex_grammar(pattern), fits) and not accepts(regex_grammar(pattern), does_not)


def test_json_follows_its_schema_in_the_order_of_its_properties() -> None:
    grammar = json_schema_grammar(json.dumps(PERSON))
    assert accepts(grammar, '{"name": "Zoë", "age": 3}') and accepts(grammar, json.dumps({"name": "a", "age": 0}, indent=4))
    assert not accepts(grammar, '{"age": 3, "name": "a"}') and not accepts(grammar, '{"name": "a", "age": -1}')


def test_json_has_no_endless_blanks() -> None:
    grammar = json_schema_grammar(json.dumps(PERSON))
    assert accepts(grammar, '{"name":' + " " * 64 + '"a","age":1}') and not accepts(grammar, '{"name":' + " " * 65 + '"a","age":1}')


def test_a_schema_may_say_how_blanks_are_written() -> None:
    grammar = json_schema_grammar(json.dumps(PERSON | {"x-guidance": {"whitespace_flexible": False}}))
    assert accepts(grammar, '{"name":"a","age":1}') and not accepts(grammar, '{"name": "a","age":1}')


def test_a_lark_grammar_may_recur() -> None:
    grammar = lark_grammar('start: list\nlist: "[" (item ("," item)*)? "]"\nitem: /[0-9]+/ | list')
    assert accepts(grammar, "[1,[2,[]],33]") and not accepts(grammar, "[1,]")


def test_a_grammar_cannot_take_back_what_we_set() -> None:
    constraint = constraint_of(lark_grammar('%llguidance {"no_forcing": false}\nstart: "x"{1000000}'))
    assert allowed_ids(constraint) == {ord("x")}


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"a": NaN}', "[" * 100_000, '{"type": "string"}}, {"x": 1}'])
def test_what_is_no_json_object_is_no_schema(text: str) -> None:
    with pytest.raises(GrammarRefused, match=r"not|nested"):
        json_schema_grammar(text)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (regex_grammar("("), 'invalid regex "(" (in regex): regex parse error: ( error: unclosed group'),
        (regex_grammar("(?=a)b"), "look-around, including look-ahead and look-behind, is not supported"),
        (regex_grammar("[a&&b]"), "no text fits it"),
        (lark_grammar("start: foo"), 'unknown name: "foo"'),
        (lark_grammar("start: start"), "no text fits it"),
        (lark_grammar("# nothing"), "no start rule found"),
        (lark_grammar("start: <nonsense>"), 'unknown special token: "<nonsense>"'),
        (json_schema_grammar('{"not": {}}'), 'Unimplemented keys: ["not"]'),
        (json_schema_grammar('{"oneOf": [{"type": "integer"}, {"type": "number"}]}'), "oneOf is supported only where"),
        (json_schema_grammar('{"$ref": "http://127.0.0.1/x"}'), "Default retriever does not fetch resources"),
        (json_schema_grammar('{"enum": []}'), "Unsatisfiable schema"),
    ],
)
def test_a_wrong_grammar_is_refused_with_its_reason_in_one_line(grammar: str, reason: str) -> None:
    why = why_refused(grammar)
    assert reason in why and "\n" not in why and "%" not in why
