"""Operators that take rows one by one: norms, rotary embedding, cache writes, activation, products with weights, look-ups."""

import torch
import torch.nn.functional as F
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


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates q [T, Hq, D] and k [T, Hk, D] to positions [T] by the tables cos and sin [L, D/2] (fp32).

    Angles and products are rounded to q's dtype, as the checkpoints' own code does: bf16 then agrees with it bit for bit.
    """
    places = positions.long()
    row_cos = cos[places].to(q.dtype).unsqueeze(1)
    row_sin = sin[places].to(q.dtype).unsqueeze(1)
    return _rotate(q, row_cos, row_sin), _rotate(k, row_cos, row_sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts rows k and v [T, Hk, D] at slots [T] (page * page_tokens + offset) of the caches [pages, page_tokens, Hk, D]."""
    places = slots.long()
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, places, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, places, v)


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gates first -> silu(gate) * up [T, I]; silu in fp32, rounded to the dtype before the product."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K] and bias [N]."""
    return F.linear(x, weight, bias)


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """ids [T], table [V, H] -> [T, H]."""
    return torch.embedding(table, ids)


def argmax(logits: Tensor) -> Tensor:
    """logits [S, V] -> [S] int64, the lowest id where the greatest value occurs more than once."""
    return torch.argmax(logits, dim=-1)


def top_k(values: Tensor, count: int) -> Tensor:
    """values [S, V] -> the `count` greatest values of each row, falling [S, count]."""
    return values.topk(count, dim=-1).values
