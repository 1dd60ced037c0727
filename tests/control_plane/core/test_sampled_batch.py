from control_plane.core.sampled_batch import SampledBatch
from control_plane.core.sampling import SamplingParams
from control_plane.core.sequence import Sequence
from control_plane.core.step import ids


def sequence(final_length: int = 8, min_length: int = 0, end_token_ids: frozenset[int] = frozenset()) -> Sequence:
    return Sequence("r", 0, ids([1, 2]), 2, final_length, min_length, end_token_ids, SamplingParams(), 0.0)


def test_each_gets_its_token_and_the_numerics_it_was_made_under() -> None:
    first, second = sequence(), sequence()
    batch = SampledBatch([first, second], "n")
    assert (first.numerics_id, batch.append([5, 6]), batch.append([7, 8])) == (None, [], [])
    assert [list(each.token_ids) for each in (first, second)] == [[1, 2, 5, 7], [1, 2, 6, 8]]
    assert first.numerics_id == second.numerics_id == "n"


def test_a_sequence_ends_with_one_of_its_own_end_tokens() -> None:
    first, second = sequence(end_token_ids=frozenset({5})), sequence(end_token_ids=frozenset({6}))
    batch = SampledBatch([first, second], "n")
    assert batch.append([6, 5]) == []
    assert batch.append([6, 6]) == [(second, 6)]


def test_an_end_token_that_was_excluded_ends_nothing() -> None:
    short = sequence(min_length=3, end_token_ids=frozenset({5}))
    batch = SampledBatch([short], "n")
    assert (batch.append([5]), batch.append([5])) == ([], [(short, 5)])


def test_each_ends_at_its_own_length() -> None:
    long, short = sequence(final_length=5), sequence(final_length=4)
    batch = SampledBatch([long, short], "n")
    assert batch.append([5, 5]) == []
    assert batch.append([5, 5]) == [(short, None)]
    assert SampledBatch([long], "n").append([5]) == [(long, None)]


def test_a_step_may_sample_of_nobody() -> None:
    assert SampledBatch([], "n").append([]) == []
