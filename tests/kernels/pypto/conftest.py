"""Runs operators of kernels.pypto through the interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.testing.depth import Depth
from kernels.testing.operators import interpret


@pytest.fixture
def run() -> Callable[..., Any]:
    """Calls "module:name" of kernels.pypto: gives its results, after a check that it left its arguments alone."""

    def call(operator: str, *args: Any, depth: Depth = Depth.TENSOR_GRAPH) -> Any:
        results, left = interpret(operator, *args, depth=depth)
        for before, after in zip(args, left, strict=True):
            assert not isinstance(before, Tensor) or torch.equal(before.nan_to_num(), after.nan_to_num()), "an argument was changed"
        return tuple(results) if len(results) > 1 else results[0]

    return call


@pytest.fixture
def random() -> Callable[..., Tensor]:
    """Normal numbers in bf16, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).bfloat16()
