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
def test_argmax_is_batch_invariant(rows):
    logits = torch.randint(0, 50, (64, 3001), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(ops.argmax(logits[-rows:]), ops.argmax(logits)[-rows:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 15, 16, 63, 64, 65, 1000, 49157])
def test_greatest_value_and_its_lowest_id_are_those_of_torch(dtype, size):
    logits = (torch.randn(9, size + 3, generator=torch.Generator().manual_seed(size)) * 4).round().to(dtype)[:, :size]
    logits[1] = -torch.inf
    logits[2, : size // 2] = -torch.inf
    logits[3, size // 2 :] = torch.inf
    values, ids = ops.greatest(logits)
    assert torch.equal(values, logits.amax(-1).float())
    assert torch.equal(ids, logits.float().argmax(-1))


@pytest.mark.parametrize("size", [1, 17, 64, 1000])
def test_greatest_value_of_a_row_with_nan_is_nan(size):
    for place in {0, size // 2, size - 1}:
        logits = torch.randn(3, size).abs()
        logits[1, place] = torch.nan
        values, ids = ops.greatest(logits)
        assert values.isnan().tolist() == [False, True, False] and bool((ids < size).all())
