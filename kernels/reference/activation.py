"""Gated activation of the MLP."""

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gates first -> silu(gate) * up [T, I]; silu in fp32, rounded to the dtype before the product."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
