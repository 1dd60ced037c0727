"""Root mean square normalisation."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [.., H], weight [H] -> [.., H]: weight * (x / sqrt(mean(x^2) + eps)), in fp32, rounded to x's dtype before the weight."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, H], weight [H] -> (rms_norm(x + residual), x + residual), the sum rounded to x's dtype."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def finite_rows(x: Tensor) -> Tensor:
    """x [T, H] -> [T] bool: whether all of a row is finite."""
    return x.isfinite().all(dim=-1)
