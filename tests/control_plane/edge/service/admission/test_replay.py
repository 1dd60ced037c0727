"""Resumed tokens are replayed in slices of any size, to the same effect."""

import pytest
from fakes.control_plane.stream_doubles import PieceText, make_output, make_request
from fakes.control_plane.subset_constraint import SubsetConstraint
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.constraint import ConstraintViolated
from control_plane.edge.service.admission.replay import Ending, Replay, ResumedChoice
from control_plane.engine.ports import FinishReason, GenerationRequest

TOKENS = [21, 34, 55, 89, 13, 8, 5, 3, 2, 1, 12, 23]
REQUEST = make_request("r", max_tokens=10)


def resumed(index: int, token_ids: list[int], constraint: SubsetConstraint | None = None, **text: object) -> ResumedChoice:
    return ResumedChoice(make_output(index, **text), token_ids, constraint=constraint)


def replay(request: GenerationRequest, choices: list[ResumedChoice], max_tokens: int) -> list[tuple[int, Ending | None]]:
    """How many tokens each choice turns out to have, and its ending."""
    replay = Replay(request, choices)
    while not replay.is_done:
        before = replay.num_pushed_tokens
        replay.advance(max_tokens)
        assert replay.num_pushed_tokens - before <= max_tokens
    return [(choice.output.first_index, choice.ending) for choice in choices]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 20))
def test_choices_end_where_their_tokens_do_whatever_the_slices(nums_resumed: list[int], max_tokens: int) -> None:
    choices = [resumed(index, TOKENS[:count]) for index, count in enumerate(nums_resumed)]
    ends = [(min(count, 10), Ending(FinishReason.LENGTH) if count >= 10 else None) for count in nums_resumed]
    assert replay(REQUEST, choices, max_tokens) == ends


@pytest.mark.parametrize("max_tokens", [1, 4, 5, 100])
def test_an_end_token_a_stop_string_and_a_constraint_are_found_on_the_way(max_tokens: int) -> None:
    constraint = SubsetConstraint()
    allowed: list[int] = []
    for _ in range(9):
        mask = constraint.mask()
        allowed.append(next(token for token in range(96) if token != 51 and mask[token // 8] >> token % 8 & 1))
        constraint.push(allowed[-1])
    constraint = SubsetConstraint()
    choices = [resumed(0, [40, 41, 42, 43], stop=("<42>",)), resumed(1, allowed, constraint), resumed(2, [50, 51, 52])]
    request = make_request("r", max_tokens=20, end_token_ids=frozenset({51}))
    assert replay(request, choices, max_tokens) == [(3, Ending(FinishReason.STOP)), (9, None), (2, Ending(FinishReason.STOP, 51))]
    assert constraint.token_ids == allowed


def test_an_end_token_counts_from_min_tokens_on_and_before_a_stop_string_or_the_length() -> None:
    request = make_request("r", max_tokens=3, min_tokens=2, end_token_ids=frozenset({51}))
    assert replay(request, [resumed(0, [51, 51, 51], stop=("<51><51><51>",))], 100) == [(3, Ending(FinishReason.STOP, 51))]


def test_resumed_tokens_that_break_the_constraint_are_refused_naming_choice_and_token() -> None:
    mask = SubsetConstraint().mask()
    broken = next(token for token in range(97) if not mask[token // 8] >> token % 8 & 1)
    choices = [resumed(0, []), resumed(1, [broken], SubsetConstraint())]
    message = f"choice 1: resumed tokens do not fit the constraint: token {broken} is not allowed"
    with pytest.raises(ConstraintViolated, match=f"^{message}$"):
        replay(REQUEST, choices, 100)


def test_text_that_breaks_tells_whoever_replays() -> None:
    with pytest.raises(RuntimeError, match="broken text"):
        replay(REQUEST, [ResumedChoice(make_output(text=PieceText(broken_at=5)), [4, 5, 6])], 100)
