"""Operators that take rows one by one: sums in a fixed pairwise order, and products of matrices whose rows do not depend on their number.

Products are Triton's where there is Triton, else those of the library, for always the same number of rows.
"""

import functools
import importlib
import importlib.util
import logging
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.moe import apply_experts
from kernels.reference.rows import swiglu

_log = logging.getLogger(__name__)

# So many rows take hardly longer than one: reading the weights does.
BLOCK_ROWS = 64


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As kernels.reference.rows.rms_norm, with a pairwise sum."""
    wide = x.float()
    scale = torch.rsqrt(sum_features(wide.square()) / x.shape[-1] + eps)
    return weight * (wide * scale).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As kernels.reference.rows.add_rms_norm, with a pairwise sum."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N]; no row depends on the others."""
    if x.is_cuda and (written := triton_products()) is not None:
        return written.linear(x, weight, bias)  # type: ignore[no-any-return]
    return linear_in_blocks(x, weight, bias)


def linear_in_blocks(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear`, a block of rows at a time: the library sees one shape only, and picks one kernel for it."""
    num_rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -num_rows % BLOCK_ROWS))
    products = [F.linear(block, weight, bias) for block in torch.split(padded, BLOCK_ROWS)]
    return (products[0] if len(products) == 1 else torch.cat(products))[:num_rows]


def moe_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The work of the experts, as kernels.reference.moe.moe_experts; no row depends on the others."""
    if x.is_cuda and (written := triton_products()) is not None:
        return written.moe_experts(x, weights, expert_ids, gate_up, down)  # type: ignore[no-any-return]

    def expert(index: int, rows: Tensor) -> Tensor:
        return linear(swiglu(linear(rows, gate_up[index], None)), down[index], None)

    return apply_experts(x, weights, expert_ids, len(gate_up), expert)


@functools.cache
def triton_products() -> ModuleType | None:
    """The products written in Triton, which comes with the CUDA build of torch; None where it is missing or does not work."""
    if not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return None
    try:
        products = importlib.import_module("kernels.accelerator.triton_products")
        products.linear(torch.zeros(1, 16, device="cuda"), torch.zeros(16, 16, device="cuda"), None)
    except Exception as error:  # Triton compiles with a C compiler and a driver that it has to find
        _log.warning("no Triton products: slower ones serve, 64 rows at a time", extra={"reason": f"{type(error).__name__}: {error}"})
        return None
    return products


def sum_features(x: Tensor) -> Tensor:
    """x [.., H] -> [.., 1]: the second half is added to the first until one element is left."""
    width = next_power_of_two(x.shape[-1])
    if width != x.shape[-1]:
        x = F.pad(x, (0, width - x.shape[-1]))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x


def sum_keys(x: Tensor) -> Tensor:
    """x [T, L, ..] for a power of two L -> [T, ..]: neighbours are added until one element is left; zeros at the end change nothing."""
    while x.shape[1] > 1:
        x = x[:, 0::2] + x[:, 1::2]
    return x.squeeze(1)


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is not less than a positive `value`."""
    return 1 << (value - 1).bit_length()
