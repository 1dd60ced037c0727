"""Products with weights of few bits, and the layouts that these are kept in.

Rows are quantized as they come, each by itself. Sums of integers are exact in any order, so that no row depends on the others.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32  # outputs per packed block
_QUAD = 4  # inputs of an output that lie together
_LEVELS = 127.0
_LEAST = 1e-30  # rows that hold nothing larger count as zeros: 127 / x has to stay finite


def int8_linear(x: Tensor, packed: Tensor, scales: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
    """See ops.int8_linear; `offsets` is for the form that keeps rows as unsigned bytes."""
    levels, row_scales = quantize_rows(x)
    weights = unpack_int8(packed)[: scales.shape[0], : x.shape[1]]
    return _with_bias(_exact_product(levels, weights).float() * row_scales * scales, bias, x.dtype)


def int8_embedding(ids: Tensor, packed: Tensor, scales: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """See ops.int8_embedding."""
    rows = packed[ids // BLOCK, :, ids % BLOCK].flatten(1)[:, :width]
    return (scales[ids, None] * rows).to(dtype)


def int4_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None, width: int) -> Tensor:
    """See ops.int4_linear."""
    groups = scales.shape[1]
    levels, row_scales = quantize_rows(x.unflatten(1, (groups, -1)))
    offsets = torch.full_like(scales, 8) if zeros is None else zeros
    weights = unpack_int4(packed).unflatten(1, (groups, -1)) - unpack_scales(offsets)[:, :, None].double()
    total = x.new_zeros(x.shape[0], weights.shape[0], dtype=torch.float32)
    for group, scale in enumerate(unpack_scales(scales).float().unbind(1)):
        total += _exact_product(levels[:, group], weights[:, group]).float() * row_scales[:, group] * scale
    return _with_bias(total[:, :width], bias, x.dtype)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [.., K] -> levels [.., K] in -127 .. 127, as floating point numbers, and scales [.., 1] fp32."""
    x = x.float()
    top = x.abs().amax(-1, keepdim=True)
    return torch.round(x * torch.where(top > _LEAST, _LEVELS / top, 0.0)), top / _LEVELS


def pack_int8(levels: Tensor) -> Tensor:
    """levels [N, K] int8 -> [N / 32, K / 4, 32, 4], both rounded up; what is added is zero."""
    num_rows, depth = levels.shape
    padded = F.pad(levels, (0, -depth % _QUAD, 0, -num_rows % BLOCK))
    return padded.unflatten(1, (-1, _QUAD)).unflatten(0, (-1, BLOCK)).transpose(1, 2).contiguous()


def unpack_int8(packed: Tensor) -> Tensor:
    """The levels, with the rows and columns that packing added."""
    return packed.transpose(1, 2).flatten(2).flatten(0, 1)


def pack_int4(levels: Tensor) -> Tensor:
    """levels [N, K] uint8 in 0 .. 15 with K % 8 == 0 -> [N / 32, K / 8, 32, 4] uint8, N rounded up.

    Of eight neighbouring inputs the first four are in the low halves of four bytes, the others in the high ones.
    """
    padded = F.pad(levels, (0, 0, 0, -levels.shape[0] % BLOCK)).unflatten(1, (-1, 2, _QUAD))
    halves = padded[:, :, 0] | padded[:, :, 1] << 4
    return halves.unflatten(0, (-1, BLOCK)).transpose(1, 2).contiguous()


def unpack_int4(packed: Tensor) -> Tensor:
    """The levels, with the rows that packing added."""
    halves = packed.transpose(1, 2)
    return torch.stack((halves & 15, halves >> 4), dim=3).flatten(2).flatten(0, 1)


def pack_scales(scales: Tensor) -> Tensor:
    """scales or zero points [N, groups] -> [N / 32, groups, 32], N rounded up."""
    return F.pad(scales, (0, 0, 0, -scales.shape[0] % BLOCK)).unflatten(0, (-1, BLOCK)).transpose(1, 2).contiguous()


def unpack_scales(packed: Tensor) -> Tensor:
    """Scales or zero points, with the rows that packing added."""
    return packed.transpose(1, 2).flatten(0, 1)


def _exact_product(levels: Tensor, weights: Tensor) -> Tensor:
    """Products of integers below 2^53 are exact in float64, whatever the order of the sums."""
    return levels.double() @ weights.double().T


def _with_bias(total: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return (total if bias is None else total + bias.float()).to(dtype)
