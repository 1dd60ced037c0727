"""Rotary position embedding, half-split (NeoX) layout."""

import torch
from torch import Tensor


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates q [T, Hq, D] and k [T, Hk, D] to positions [T] by the tables cos and sin [L, D/2] (fp32).

    Angles and products are rounded to q's dtype, as the checkpoints' own code does: bf16 then agrees with it bit for bit.
    """
    row_cos = cos[positions].to(q.dtype).unsqueeze(1)
    row_sin = sin[positions].to(q.dtype).unsqueeze(1)
    return _rotate(q, row_cos, row_sin), _rotate(k, row_cos, row_sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
