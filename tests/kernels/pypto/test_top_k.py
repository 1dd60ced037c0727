"""The leading values of rows, exactly."""

import pytest
import torch

from kernels.testing.depth import Depth
from kernels.testing.operators import interpret

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(600)]


def check(values, count, depth=Depth.TENSOR_GRAPH):
    (leading,), _ = interpret("top_k:top_k", values, count, depth=depth)
    assert torch.equal(leading, values.sort(dim=-1, descending=True).values[:, :count])


def random(rows, width):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(width))


@pytest.mark.parametrize(("rows", "width", "count"), [(1, 64, 5), (3, 2047, 64), (2, 2048, 128), (5, 5000, 64), (1, 151936, 128)])
def test_leading_values_are_in_falling_order(rows, width, count):
    check(random(rows, width), count)


@pytest.mark.kernels_fast
def test_the_last_tile_may_hold_one_value():
    check(random(2, 2049), 128)


@pytest.mark.kernels_fast
def test_equal_values_fill_the_places_that_are_left():
    values = random(2, 300)
    values[:, ::3] = 2.0
    check(values, 50)


def test_excluded_tokens_come_last():
    values = random(2, 300)
    values[:, 5:290] = float("-inf")
    check(values, 20)


def test_every_pass_of_the_compiler_keeps_it():
    check(random(2, 2056), 8, Depth.ALL_PASSES)
