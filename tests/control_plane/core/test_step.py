"""Packed log probabilities are a sequence like any other."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.step import PackedLogprobs, TokenLogprob


def entries_of(num_tokens: int, num_alternatives: int) -> list[TokenLogprob]:
    return [
        TokenLogprob(index, -0.5 * index, tuple((7 * index + place, -1.0 - place) for place in range(num_alternatives)))
        for index in range(num_tokens)
    ]


def packed(entries: list[TokenLogprob], num_alternatives: int) -> PackedLogprobs:
    tops = [top for entry in entries for top in entry.top]
    return PackedLogprobs(
        [entry.token_id for entry in entries],
        memoryview(array("f", [entry.logprob for entry in entries])),
        num_alternatives,
        memoryview(array("I", [token_id for token_id, _ in tops])),
        memoryview(array("f", [logprob for _, logprob in tops])),
    )


@given(st.integers(0, 200), st.integers(0, 3), st.integers(0, 210), st.integers(0, 210))
def test_it_equals_the_list_and_so_do_its_slices(num_tokens: int, num_alternatives: int, first: int, last: int) -> None:
    entries = entries_of(num_tokens, num_alternatives)
    short = packed(entries, num_alternatives)
    assert (len(short), list(short)) == (num_tokens, entries)
    assert list(short[first:last]) == entries[first:last]
    assert [short[index] for index in range(num_tokens)][:5] == entries[:5]


def test_there_is_nothing_behind_its_end() -> None:
    with pytest.raises(IndexError):
        packed(entries_of(3, 1), 1)[3]


def test_a_slice_copies_nothing() -> None:
    whole = packed(entries_of(100, 2), 2)
    assert whole[10:20].top_logprobs.obj is whole.top_logprobs.obj
