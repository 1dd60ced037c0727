"""The probe for the row tile."""

import pytest
import torch

from kernels.linear import PackedLinear
from kernels.row_ladder import pad_rows
from kernels.row_tile import RowTileError, find_row_tile

SHAPES = [(64, 64), (96, 32), (320, 64), (576, 1536), (1024, 3072)]


def cancelling(num_rows, length, sign, dtype):
    """Rows whose products sum to rounding errors only, so that any change of order shows even in bf16."""
    half = torch.randn(num_rows, length // 2, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(length // 2, generator=torch.Generator().manual_seed(4))
    return torch.cat((half, sign * half[:, order]), dim=1).to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_padded_to_the_tile_do_not_depend_on_their_company(dtype, shape):
    tile = find_row_tile([shape], dtype)
    layer = PackedLinear(cancelling(shape[0], shape[1], -1, dtype), None, tile)
    x = cancelling(512, shape[1], 1, dtype)
    whole = layer(x)
    for batch in range(1, 513):
        assert torch.equal(layer(pad_rows(x[-batch:], tile))[:batch], whole[-batch:]), batch


def test_number_of_threads_does_not_change_the_bits(dtype):
    layer, x = PackedLinear(cancelling(576, 1536, -1, dtype), None, 2), cancelling(32, 1536, 1, dtype)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(layer(x))
    assert all(torch.equal(result, results[0]) for result in results)


def test_the_tile_is_the_greatest_that_any_shape_needs(dtype):
    assert find_row_tile(SHAPES, dtype) == max(find_row_tile([shape], dtype) for shape in SHAPES)


def test_a_shape_without_an_exact_tile_is_named(monkeypatch, dtype):
    calls = iter(range(10**6))
    monkeypatch.setattr("kernels.linear._can_pack", lambda weight: False)
    monkeypatch.setattr("kernels.linear._plain", lambda weight, bias: lambda x: torch.full((x.shape[0], 1), float(next(calls))))
    with pytest.raises(RowTileError, match="linear of 64 x 32"):
        find_row_tile([(64, 32)], dtype)
