"""PackedLinear."""

import pytest
import torch

from kernels.linear import PackedLinear


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


def test_rows_must_fill_their_tiles(random):
    with pytest.raises(AssertionError, match="3 rows are not a multiple of the row tile 2"):
        PackedLinear(random(8, 16), None, 2)(random(3, 16))
