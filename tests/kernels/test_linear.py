"""PackedLinear and the probe for its row tile."""

import pytest
import torch

from kernels import linear
from kernels.linear import PackedLinear, RowTileError, find_row_tile

SHAPES = [(64, 64), (96, 32), (320, 64), (576, 1536), (1024, 3072)]
BATCHES = [*range(1, 34), 64, 100, 257, 512]


def cancelling(num_rows, length, sign, dtype):
    """Rows whose products sum to rounding errors only, so that any change of order shows even in bf16."""
    half = torch.randn(num_rows, length // 2, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(length // 2, generator=torch.Generator().manual_seed(4))
    return torch.cat((half, sign * half[:, order]), dim=1).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_equals_the_product_in_float64(dtype, random, bias):
    weight, x, offset = random(96, 64), random(10, 64), random(96) if bias else None
    expected = x.double() @ weight.double().T + (offset.double() if bias else 0)
    torch.testing.assert_close(
        PackedLinear(weight, offset, 2)(x).double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4
    )


def test_linear_keeps_nothing_of_the_tensor_it_was_given(random):
    weight, x = random(32, 16), random(2, 16)
    layer = PackedLinear(weight, None, 2)
    before = layer(x)
    weight.zero_()
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_padded_to_the_tile_do_not_depend_on_their_company(dtype, shape):
    tile = find_row_tile([shape], dtype)
    layer = PackedLinear(cancelling(shape[0], shape[1], -1, dtype), None, tile)
    x = cancelling(512, shape[1], 1, dtype)
    whole = layer(x)
    for batch in BATCHES:
        padded = torch.nn.functional.pad(x[-batch:], (0, 0, 0, -batch % tile))
        assert torch.equal(layer(padded)[:batch], whole[-batch:]), batch


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
    monkeypatch.setattr(linear, "_can_pack", lambda weight: False)
    monkeypatch.setattr(linear, "_plain", lambda weight, bias: lambda x: torch.full((x.shape[0], 1), float(next(calls))))
    with pytest.raises(RowTileError, match="linear of 64 x 32"):
        find_row_tile([(64, 32)], dtype)


def test_rows_must_fill_their_tiles(random):
    with pytest.raises(AssertionError, match="3 rows are not a multiple of the row tile 2"):
        PackedLinear(random(8, 16), None, 2)(random(3, 16))
