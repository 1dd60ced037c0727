"""Matrix products of rows with weights."""

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K] and bias [N]."""
    return F.linear(x, weight, bias)
