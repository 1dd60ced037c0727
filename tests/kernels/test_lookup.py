"""embedding and argmax."""

import pytest
import torch

from kernels import ops


def test_embedding_picks_rows(random):
    table = random(10, 4)
    assert torch.equal(ops.embedding(torch.tensor([3, 0, 3]), table), table[[3, 0, 3]])


@pytest.mark.parametrize("size", [5, 64, 1000, 49152])
def test_argmax_takes_the_lowest_id_of_equals(size):
    logits = torch.zeros(3, size)
    logits[1, [size // 2, size - 1]] = 1.0
    logits[2, size - 1] = 1.0
    assert ops.argmax(logits).tolist() == [0, size // 2, size - 1]


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_argmax_of_a_row_does_not_depend_on_its_company(rows):
    logits = torch.randint(0, 50, (64, 3001), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(ops.argmax(logits[-rows:]), ops.argmax(logits)[-rows:])
