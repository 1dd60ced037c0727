"""The order of the largest values, with many ties."""

import pytest
import torch

from worker.sampling.ranking import rank, top


def _ties(rows, vocab_size, levels):
    return torch.randint(0, levels, (rows, vocab_size), generator=torch.Generator().manual_seed(levels)).float()


@pytest.mark.parametrize("levels", [2, 30, 10_000])
@pytest.mark.parametrize("count", [1, 5, 64, 300])
def test_top_is_ordered_by_value_and_then_by_token_id(levels, count):
    values = _ties(6, 1000, levels)
    expected = [sorted(range(1000), key=lambda i, row=row: (-float(values[row, i]), i))[:count] for row in range(6)]
    top_values, token_ids = top(values, count)
    assert token_ids.tolist() == expected
    assert torch.equal(top_values, values.gather(-1, token_ids))


def test_top_of_nothing_is_empty():
    values, token_ids = top(_ties(3, 10, 4), 0)
    assert values.shape == token_ids.shape == (3, 0)


def test_top_reaches_the_whole_vocabulary():
    assert top(_ties(2, 10, 4), 10)[1].sort(dim=-1).values.tolist() == [list(range(10))] * 2


def test_ranking_does_not_settle_a_value_that_ties_with_its_last():
    ranking = rank(torch.tensor([[3.0, 2.0, 1.0, 1.0], [3.0, 2.0, 2.0, 2.0]]), 3)
    assert ranking.settles(torch.tensor([[2.0], [2.0]])).tolist() == [True, False]
    assert rank(torch.ones(2, 4), 4).settles(torch.ones(2, 1)).tolist() == [True, True]
