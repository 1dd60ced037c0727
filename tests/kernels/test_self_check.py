"""The check of a device before it serves."""

import pytest
import torch

from kernels import ops
from kernels.self_check import WrongResults, check_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("page_tokens", [16, 128])
def test_a_device_that_computes_passes(dtype: torch.dtype, page_tokens: int) -> None:
    check_device(CPU, dtype, page_tokens)


@pytest.mark.parametrize("operator", ["linear", "paged_attention"])
@pytest.mark.parametrize("fill", [torch.nan, 0.0])
def test_an_operator_that_leaves_its_result_unwritten_is_named(monkeypatch: pytest.MonkeyPatch, operator: str, fill: float) -> None:
    computed = getattr(ops, operator)
    monkeypatch.setattr(ops, operator, lambda *args: torch.full_like(computed(*args), fill))
    with pytest.raises(WrongResults, match=rf"^{operator} is off by up to .* on cpu"):
        check_device(CPU, torch.bfloat16, 16)
