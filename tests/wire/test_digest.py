import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving.wire.columns import Ids
from pypto_serving.wire.digest import StateDigest

_TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def ids(*values: int) -> Ids:
    return np.array(values, dtype=np.uint32)


def admitted(token_ids: list[int], pages: list[int], lane: int = 3, generation: int = 7) -> StateDigest:
    digest = StateDigest(num_lanes=8, num_groups=2)
    digest.admit(lane, generation, ids(*token_ids), [ids(*pages), ids()])
    return digest


@given(_TOKENS, _TOKENS)
def test_how_a_lane_came_by_its_tokens_does_not_matter(first: list[int], then: list[int]) -> None:
    grown = admitted(first, [])
    for token_id in then:
        grown.append(ids(3), ids(token_id))
    assert grown.value == admitted(first + then, []).value


@given(_TOKENS, _TOKENS)
def test_how_a_lane_came_by_its_pages_does_not_matter(first: list[int], then: list[int]) -> None:
    grown = admitted([1], first)
    grown.grow(ids(*[3] * len(then)), ids(*[0] * len(then)), ids(*then))
    assert grown.value == admitted([1], first + then).value


def test_the_empty_state_is_zero_and_a_released_lane_leaves_nothing() -> None:
    digest = admitted([1, 2], [5])
    digest.admit(4, 9, ids(1), [ids(6), ids()])
    digest.trim(ids(4), ids(0), ids(1))
    digest.release(ids(3, 4))
    assert digest.value == 0


@pytest.mark.parametrize(
    "other",
    [
        admitted([2, 1], [5]),
        admitted([1, 2, 0], [5]),
        admitted([1, 2], [6]),
        admitted([1, 2], []),
        admitted([1, 2], [5], lane=4),
        admitted([1, 2], [5], generation=8),
        admitted([1, 2], [5], generation=2**32 + 7),
        admitted([1, 2], [5], lane=2, generation=2**32 + 7),
    ],
)
def test_any_other_fact_changes_it(other: StateDigest) -> None:
    assert other.value != admitted([1, 2], [5]).value


def test_the_group_and_a_trim_change_it() -> None:
    one, other, trimmed = admitted([1], [5, 6]), admitted([1], [5]), admitted([1], [5, 6])
    other.grow(ids(3), ids(1), ids(6))
    trimmed.trim(ids(3), ids(0), ids(1))
    assert len({one.value, other.value, trimmed.value}) == 3
