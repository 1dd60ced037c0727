"""Root mean square normalisation."""

import torch
from torch import Tensor

from kernels.accelerator.tree_sum import sum_features


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See kernels.reference.norm."""
    wide = x.float()
    scale = torch.rsqrt(sum_features(wide.square()) / x.shape[-1] + eps)
    return weight * (wide * scale).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See kernels.reference.norm."""
    total = x + residual
    return rms_norm(total, weight, eps), total
