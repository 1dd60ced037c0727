"""Prices of kernels."""

from importlib.util import find_spec

import pytest
import torch

from kernels.testing.operators import price

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.kernels_fast,
    pytest.mark.skipif(find_spec("pypto") is None, reason="PyPTO is not installed: extra `kernels-dev`"),
]


def test_a_price_is_the_same_every_time_and_grows_with_the_work():
    small, large = (torch.zeros(rows, 2048, dtype=torch.bfloat16) for rows in (8, 256))
    assert price("swiglu:swiglu", small) == price("swiglu:swiglu", small) < price("swiglu:swiglu", large)
