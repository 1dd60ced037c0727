"""Norms, activation, rotary embedding and cache writes."""

import torch
from torch import Tensor

from kernels.cann.batch_memo import BatchMemo


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As kernels.ops.rms_norm; rounded once, behind the weight."""
    return torch.ops.npu.npu_rms_norm(x, weight, eps)[0]  # type: ignore[no-any-return]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As kernels.ops.add_rms_norm."""
    normalised, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, weight, eps)
    return normalised, total


def swiglu(gate_up: Tensor) -> Tensor:
    """As kernels.ops.swiglu."""
    return torch.ops.npu.npu_swiglu(gate_up, -1)  # type: ignore[no-any-return]


class Rotary:
    """kernels.ops.rotary; the angles of a batch are looked up once."""

    def __init__(self) -> None:
        self._angles = BatchMemo(_look_up)

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Heads [T, N, D] are its layout BSND for one sequence, cosines and sines 1S1D."""
        angles = self._angles(positions, cos, sin)
        return _rotate(q, *angles), _rotate(k, *angles)


def _look_up(positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Of tables [L, D / 2] the rows at positions [T], each twice: [1, T, 1, D] bf16."""
    places = positions.clamp(min=0).long()  # padding rows may be at -1
    return tuple(torch.cat((rows, rows), -1)[None, :, None].bfloat16() for rows in (cos[places], sin[places]))  # type: ignore[return-value]


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.ops.npu.npu_rotary_mul(heads.contiguous()[None], cos, sin, "half")[0]  # type: ignore[no-any-return]


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """As kernels.ops.write_kv."""
    for rows, cache in ((k, k_cache), (v, v_cache)):
        torch.ops.npu.npu_scatter_nd_update_(cache.view(-1, *rows.shape[1:]), slots[:, None], rows)
