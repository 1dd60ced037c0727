"""The output of a choice: columns of tokens, and the text that is made of them."""

import pytest
from fakes.control_plane.stream_doubles import end_of, make_output
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.step import TokenLogprob
from control_plane.edge.service.choice_output import ChoiceOutput, Delta
from control_plane.engine.ports import FinishReason


def put(output: ChoiceOutput, *token_ids: int) -> ChoiceOutput:
    """Tokens come, and are looked at if need be."""
    output.token_ids.extend(token_ids)
    if output.has_stops:
        output.look()
    return output


def drain(output: ChoiceOutput, min_tokens: int = 1, max_tokens: int = 64) -> list[Delta]:
    """Take all there is to take."""
    deltas = []
    while delta := output.take(min_tokens, max_tokens):
        deltas.append(delta)
    return deltas


def seen(deltas: list[Delta]) -> list[tuple[int, list[int], str, str]]:
    return [(delta.first_index, list(delta.token_ids), delta.text, delta.numerics_id) for delta in deltas]


@pytest.mark.parametrize("stop", [(), ("never seen",)])
def test_tokens_come_out_as_one_delta_with_their_text(stop: tuple[str, ...]) -> None:
    output = put(put(make_output(stop=stop), 4, 5), 6)
    output.finish(end_of())
    assert seen(drain(output)) == [(0, [4, 5, 6], "<4><5><6>", "")]


def test_a_delta_is_of_bounded_size_and_none_is_made_of_too_little() -> None:
    output = put(make_output(), *range(10))
    assert [list(delta.token_ids) for delta in drain(output, 3, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    output.finish(end_of())
    assert seen(drain(output, 3, 4)) == [(8, [8, 9], "<8><9>", "")]


def test_tokens_of_other_numerics_stay_apart_and_the_id_is_told_where_it_changes() -> None:
    output = make_output()
    output.change_numerics("a")
    put(output, 4)
    output.change_numerics("b")
    output.change_numerics("b")  # again, after the engine was replaced
    put(output, 5, 6)
    assert seen(drain(output)) == [(0, [4], "<4>", "a"), (1, [5, 6], "<5><6>", "b")]
    assert seen(drain(put(output, 7))) == [(3, [7], "<7>", "")]


def test_too_few_tokens_go_when_others_follow_them_that_cannot_join_them() -> None:
    output = make_output()
    output.change_numerics("a")
    put(output, 4, 5)
    assert drain(output, 10) == []
    output.change_numerics("b")
    put(output, 6)
    assert seen(drain(output, 10)) == [(0, [4, 5], "<4><5>", "a")]


def test_entries_go_with_their_tokens() -> None:
    output = put(make_output(), 4, 5, 6)
    output.logprobs.extend(TokenLogprob(token_id, -1.0) for token_id in (4, 5, 6))
    taken = [[entry.token_id for entry in delta.logprobs] for delta in drain(output, max_tokens=2)]
    assert (taken, output.logprobs) == ([[4, 5], [6]], [])


def test_the_end_is_told_once_behind_the_last_token() -> None:
    output = put(make_output(), 4)
    assert output.take_end() is None
    output.finish(end_of(count=1))
    assert output.take_end() is None
    drain(output)
    end = output.take_end()
    assert end is not None and (end.finished.num_generated_tokens, end.stop_string) == (1, None)
    assert output.take_end() is None


def test_a_stop_string_stops_and_later_tokens_are_dropped() -> None:
    output = put(make_output(stop=("5>",)), 4)
    output.logprobs.extend(TokenLogprob(token_id, -1.0) for token_id in (4, 5, 6))
    output.token_ids.extend([5, 6])
    assert output.look()
    put(output, 7, 8)
    assert not output.look()
    (delta,) = drain(output)
    assert (list(delta.token_ids), delta.text, len(delta.logprobs)) == ([4, 5], "<4><", 2)
    output.finish(end_of(count=5))
    end = output.take_end()
    assert end is not None
    assert (end.finished.reason, end.finished.num_generated_tokens, end.stop_string) == (FinishReason.STOP, 2, "5>")


@pytest.mark.parametrize(
    ("end_token_id", "count", "stop_string", "told"),
    [
        (None, 4, "<5>", 2),  # it went on to its length
        (None, 2, "<5>", 2),  # a stop wins over the length
        (7, 4, "<5>", 2),  # it went on to an end token
        (5, 2, None, 2),  # the end token wins, whose text was the stop string
    ],
)
def test_the_verdict_of_the_text_counts_whatever_the_engine_has_done_meanwhile(
    end_token_id: int | None, count: int, stop_string: str | None, told: int
) -> None:
    output = put(make_output(stop=("<5>",)), *[4, 5, 6, 7][:count])
    output.finish(end_of(count=count, end_token_id=end_token_id))
    assert [list(delta.token_ids) for delta in drain(output)] == [[4, 5]]
    end = output.take_end()
    assert end is not None
    assert (end.stop_string, end.finished.num_generated_tokens, end.finished.reason) == (stop_string, told, FinishReason.STOP)


def test_txt_06_text_held_back_comes_with_the_last_token() -> None:
    output = put(make_output(stop=("never seen",)), 4, 5)
    assert "".join(delta.text for delta in drain(output)) == ""
    put(output, 6)
    output.finish(end_of())
    assert seen(drain(output)) == [(2, [6], "<4><5><6>", "")]


def test_what_was_replayed_is_not_told_again() -> None:
    output = make_output(stop=("<6><7>",))
    for token_id in (4, 5, 6):
        output.replay(token_id)
    put(output, 7)
    assert seen(drain(output)) == [(3, [7], "5>", "")]
    output.finish(end_of(count=4))
    end = output.take_end()
    assert end is not None and (end.stop_string, end.finished.num_generated_tokens) == ("<6><7>", 4)


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=8), st.integers(1, 5), st.integers(1, 5), st.sampled_from([(), ("<1><2>",)])
)
def test_however_output_is_taken_it_is_the_same(passes: list[list[int]], min_tokens: int, max_tokens: int, stop: tuple[str, ...]) -> None:
    whole, parts = make_output(stop=stop), make_output(stop=stop)
    taken = []
    for token_ids in passes:
        put(whole, *token_ids)
        put(parts, *token_ids)
        taken += drain(parts, min_tokens, max_tokens)
    for output in (whole, parts):
        output.finish(end_of(count=sum(map(len, passes))))
    taken += drain(parts, min_tokens, max_tokens)
    expected = drain(whole, max_tokens=1000)
    assert "".join(delta.text for delta in taken) == "".join(delta.text for delta in expected)
    assert [token_id for delta in taken for token_id in delta.token_ids] == [id for delta in expected for id in delta.token_ids]
    assert parts.take_end() == whole.take_end()
