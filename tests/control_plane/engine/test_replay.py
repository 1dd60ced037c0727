"""Resumed tokens are replayed in slices of any size, to the same effect."""

import pytest
from fakes.control_plane.engine_doubles import PieceText, make_choice, received_request
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import solo
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.constraint import ConstraintViolated
from control_plane.engine.ports import Ending, FinishReason, GenerationRequest
from control_plane.engine.replay import Replay

PROMPT = (1, 2, 3)


def replayed(request: GenerationRequest, max_tokens: int) -> GenerationRequest:
    replay = Replay(request)
    while not replay.is_done:
        before = replay.num_pushed_tokens
        replay.advance(max_tokens)
        assert replay.num_pushed_tokens - before <= max_tokens
    return replay.request


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 20))
def test_choices_end_where_their_tokens_do_whatever_the_slices(nums_resumed: list[int], max_tokens: int) -> None:
    tokens = solo(PROMPT, 12)
    resumed = [make_choice(index, resumed=tokens[:count]) for index, count in enumerate(nums_resumed)]
    choices = replayed(received_request("r", PROMPT, max_tokens=10, choices=resumed), max_tokens).choices
    for choice, count in zip(choices, nums_resumed, strict=True):
        assert list(choice.resumed_token_ids) == tokens[: min(count, 10)]
        assert choice.resumed_ending == (Ending(FinishReason.LENGTH) if count >= 10 else None)


@pytest.mark.parametrize("max_tokens", [1, 4, 5, 100])
def test_an_end_token_a_stop_string_and_a_constraint_are_found_on_the_way(max_tokens: int) -> None:
    tokens, constraint = solo(PROMPT, 9, constraint=SubsetConstraint()), SubsetConstraint()
    stopped = make_choice(0, resumed=[40, 41, 42, 43], stop=("<42>",))
    going_on = make_choice(1, resumed=tokens, constraint=constraint)
    ended = make_choice(2, resumed=[50, 51, 52])
    request = received_request("r", PROMPT, max_tokens=20, choices=[stopped, going_on, ended], end_token_ids=frozenset({51} - set(tokens)))
    endings = [(list(choice.resumed_token_ids), choice.resumed_ending) for choice in replayed(request, max_tokens).choices]
    assert endings == [
        ([40, 41, 42], Ending(FinishReason.STOP, "<42>")),
        (tokens, None),
        ([50, 51], Ending(FinishReason.STOP, 51)),
    ]
    assert constraint.token_ids == tokens


def test_resumed_tokens_that_break_the_constraint_are_refused_naming_choice_and_token() -> None:
    mask = SubsetConstraint().mask()
    broken = next(token for token in range(97) if not mask[token // 8] >> token % 8 & 1)
    choices = [make_choice(0), make_choice(1, resumed=[broken], constraint=SubsetConstraint())]
    message = f"choice 1: resumed tokens do not fit the constraint: token {broken} is not allowed"
    with pytest.raises(ConstraintViolated, match=f"^{message}$"):
        replayed(received_request("r", choices=choices), 100)


def test_text_that_breaks_tells_whoever_replays() -> None:
    with pytest.raises(RuntimeError, match="broken text"):
        replayed(received_request("r", text=PieceText(broken_at=5), resumed=[4, 5, 6]), 100)
