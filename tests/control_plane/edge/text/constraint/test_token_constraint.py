"""Masks and pushes of one sequence."""

import json
import random
import re

import pytest
from fakes.control_plane.scripted_engine import VOCAB_SIZE
from fakes.text.byte_constraints import HarmlessCompiler, accepts, allowed_ids, constraint_of
from fakes.text.tokenizers import BOS, EOS, EOT, THINK, byte_piece_id, byte_tokenizer, piece_id, piece_tokenizer

from control_plane.core.constraint import ConstraintExhausted, ConstraintViolated
from control_plane.edge.text.constraint.grammar import alternatives_grammar, json_schema_grammar, lark_grammar, regex_grammar
from control_plane.edge.text.constraint.token_constraint import TokenConstraint

ENDS = {EOS, EOT}


def test_a_mask_has_one_bit_per_row_of_the_embedding() -> None:
    assert len(constraint_of(regex_grammar("a")).mask()) == (VOCAB_SIZE + 7) // 8


def test_end_tokens_are_allowed_exactly_where_the_output_is_complete() -> None:
    constraint = constraint_of(regex_grammar("a(bc)?"))
    assert allowed_ids(constraint) == {ord("a")}
    constraint.push(ord("a"))
    assert allowed_ids(constraint) == {ord("b"), *ENDS}
    constraint.push(ord("b"))
    assert allowed_ids(constraint) == {ord("c")}
    constraint.push(ord("c"))
    assert allowed_ids(constraint) == ENDS


@pytest.mark.parametrize("end", sorted(ENDS))
def test_every_end_token_ends_complete_output_and_no_other(end: int) -> None:
    constraint = constraint_of(alternatives_grammar(["a", "ab"]))
    with pytest.raises(ConstraintViolated, match=f"end token {end} comes before the output is complete"):
        constraint.push(end)
    constraint.push(ord("a"))
    constraint.push(end)
    assert allowed_ids(constraint) == set()
    with pytest.raises(ConstraintViolated, match="after the end"):
        constraint.push(ord("b"))


def test_a_grammar_that_names_an_end_token_does_not_let_it_come_early() -> None:
    constraint = constraint_of(lark_grammar('start: "a" (<eos> | "b") "c"'))
    constraint.push(ord("a"))
    assert allowed_ids(constraint) == {ord("b")}


def test_an_empty_text_may_be_all_there_is() -> None:
    assert allowed_ids(constraint_of(regex_grammar("a?"))) == {ord("a"), *ENDS}


def test_rows_without_a_token_and_special_tokens_are_no_text() -> None:
    anything = constraint_of(regex_grammar("(?s:.)*"))
    text = allowed_ids(anything) - ENDS
    assert max(text) < 256
    for token_id in (BOS, 300, VOCAB_SIZE - 1):
        with pytest.raises(ConstraintViolated, match=f"token id {token_id} is not allowed"):
            constraint_of(regex_grammar("(?s:.)*")).push(token_id)


def test_a_grammar_may_ask_for_special_tokens() -> None:
    assert allowed_ids(constraint_of(lark_grammar('start: <think> "a"'))) == {THINK}


def test_the_state_is_a_pure_function_of_the_tokens() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"], "additionalProperties": false}'
    first, draw, tokens, masks = constraint_of(json_schema_grammar(schema)), random.Random(1), [], []
    while not (allowed := allowed_ids(first)) & ENDS:
        masks.append(first.mask())
        tokens.append(draw.choice(sorted(allowed)))
        first.push(tokens[-1])
    again = constraint_of(json_schema_grammar(schema))
    for token_id in tokens:  # as a resume does, which asks for no masks on the way
        again.push(token_id)
    assert again.mask() == first.mask()
    third = constraint_of(json_schema_grammar(schema))
    for token_id, mask in zip(tokens, masks, strict=True):
        assert third.mask() == third.mask() == mask
        third.push(token_id)


def test_characters_may_be_spread_over_tokens() -> None:
    constraint = constraint_of(alternatives_grammar(["雨", "雪"]))
    for byte in "雪".encode():
        assert byte in allowed_ids(constraint)
        constraint.push(byte)
    assert allowed_ids(constraint) == ENDS


def test_pieces_with_blanks_and_byte_fallback_mean_what_they_show() -> None:
    constraint = constraint_of(alternatives_grammar([" there é"]), piece_tokenizer(["▁there", "▁", "there"]))
    assert allowed_ids(constraint) == {piece_id(0), piece_id(1), byte_piece_id(ord(" "))}
    for token_id in (piece_id(0), piece_id(1), *map(byte_piece_id, "é".encode())):
        constraint.push(token_id)
    assert allowed_ids(constraint) == ENDS


def tokens_until_too_complex(grammar: str) -> tuple[int, str]:
    """How many times "a" can be drawn, and why not more often. No fresh matcher is asked: that would take seconds, and in vain."""
    constraint = constraint_of(grammar)
    constraint._begin = None
    for count in range(1000):
        try:
            assert ord("a") in allowed_ids(constraint)
        except ConstraintExhausted as error:
            return count, str(error)
        constraint.push(ord("a"))
    pytest.fail("nothing bounds the grammar")


@pytest.mark.parametrize("rule", ["e e e | e e | /[ab]/", 'e e | "" | "a"'])
def test_where_a_grammar_gets_too_complex_follows_from_the_tokens_alone(rule: str) -> None:
    grammar = lark_grammar(f"start: e\ne: {rule}")
    count, reason = tokens_until_too_complex(grammar)
    assert reason.startswith("too complex: ") and "\n" not in reason
    assert tokens_until_too_complex(grammar) == (count, reason)
    again = constraint_of(grammar)
    for _ in range(count):  # as a resume does, which asks for no masks on the way
        again.push(ord("a"))
    with pytest.raises(ConstraintExhausted, match=re.escape(reason)):
        again.mask()


LONG_TEXT = json_schema_grammar('{"type": "string", "minLength": 20000}')  # a state of the lexer for each character, several for a mask
MAX_STATES = 300


def drawn(constraint: TokenConstraint, num_tokens: int) -> list[int]:
    """Random tokens, as many as the constraint has masks for."""
    draw, tokens = random.Random(7), []
    try:
        while len(tokens) < num_tokens:
            tokens.append(draw.choice(sorted(allowed_ids(constraint))))
            constraint.push(tokens[-1])
    except ConstraintExhausted as error:
        assert "too many states" in str(error)
    return tokens


def test_states_that_pile_up_from_mask_to_mask_are_not_counted() -> None:
    tokens = drawn(constraint_of(LONG_TEXT, max_lexer_states=MAX_STATES), 1000)
    assert MAX_STATES // 3 < len(tokens) < MAX_STATES
    assert tokens == drawn(constraint_of(LONG_TEXT), len(tokens))


@pytest.mark.parametrize("num_resumed", [0, 1, 2, 10, 50, 100])
def test_states_of_the_lexer_end_a_sequence_at_the_same_token_after_a_resume(num_resumed: int) -> None:
    tokens = drawn(constraint_of(LONG_TEXT, max_lexer_states=MAX_STATES), 1000)
    again = constraint_of(LONG_TEXT, max_lexer_states=MAX_STATES)
    whole = constraint_of(LONG_TEXT)
    for index, token_id in enumerate(tokens):
        if index >= num_resumed:
            assert again.mask() == whole.mask()
        again.push(token_id)
        whole.push(token_id)
    with pytest.raises(ConstraintExhausted, match="too many states"):
        again.mask()


def test_choices_do_not_count_each_others_states() -> None:
    one, *others = HarmlessCompiler(byte_tokenizer(), max_lexer_states=MAX_STATES).compile(LONG_TEXT, 3)
    tokens = drawn(one, 1000)
    for other in others:
        assert drawn(other, 1000) == tokens


def test_a_token_that_does_not_fit_is_refused_by_a_full_matcher_too() -> None:
    constraint = constraint_of(LONG_TEXT, max_lexer_states=MAX_STATES)
    drawn(constraint, 50)
    with pytest.raises(ConstraintViolated, match=f"token id {BOS} is not allowed"):
        constraint.push(BOS)


def test_an_object_may_have_a_hundred_optional_properties() -> None:
    properties = {f"property_{index}": {"type": ["string", "null"]} for index in range(100)}
    grammar = json_schema_grammar(json.dumps({"type": "object", "properties": properties}))
    assert accepts(grammar, json.dumps(dict.fromkeys(list(properties)[::9])))
