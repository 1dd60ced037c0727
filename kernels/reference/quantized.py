"""Products with weights of few bits, and the layouts that these are kept in.

Rows are quantized as they come, each by itself. Sums of integers are exact in any order, so that no row depends on the others.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL = 32  # outputs that lie together
_QUAD = 4  # inputs of an output that lie side by side
_TILE = 64  # depth of 8-bit weights is a multiple of what an AMX tile holds
_LEVELS = 127.0
_LEAST = 1e-30  # rows that hold nothing larger count as zeros: 127 / x has to stay finite


def int8_linear(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor, panels: Tensor, scales: Tensor, offsets: Tensor, bias: Tensor | None, dtype: torch.dtype, brgemm: bool
) -> Tensor:
    """Rows times a weight of 8 bits, as kernels.ops.int8_linear; `offsets` and `brgemm` are for C++, which keeps rows as unsigned bytes."""
    levels, row_scales = quantize_rows(x)
    weights = unpack_int8(panels)[: scales.shape[0], : x.shape[1]]
    total = _exact_product(levels, weights).float() * row_scales * scales
    return (total if bias is None else total + bias).to(dtype)


def int8_embedding(ids: Tensor, panels: Tensor, scales: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Rows of a weight of 8 bits, as kernels.ops.int8_embedding."""
    rows = panels[ids // PANEL, :, ids % PANEL].flatten(1)[:, :width]
    return (scales[ids, None] * rows).to(dtype)


def int4_linear(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor, panels: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None, width: int, dtype: torch.dtype
) -> Tensor:
    """Rows times a weight of 4 bits, as kernels.ops.int4_linear."""
    groups = scales.shape[1]
    levels, row_scales = quantize_rows(x.reshape(x.shape[0], groups, x.shape[1] // groups))
    offsets = torch.full_like(scales, 8) if zeros is None else zeros
    weights = unpack_int4(panels).view(-1, groups, x.shape[1] // groups) - unpack_scales(offsets)[:, :, None].double()
    total = x.new_zeros(x.shape[0], weights.shape[0], dtype=torch.float32)
    for group, scale in enumerate(unpack_scales(scales).float().unbind(1)):
        total += _exact_product(levels[:, group], weights[:, group]).float() * row_scales[:, group] * scale
    total = total[:, :width]
    return (total if bias is None else total + bias).to(dtype)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [.., K] -> levels [.., K] in -127 .. 127, as floating point numbers, and scales [.., 1] fp32."""
    x = x.float()
    top = x.abs().amax(-1, keepdim=True)
    return torch.round(x * torch.where(top > _LEAST, _LEVELS / top, 0.0)), top / _LEVELS


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Levels and scales of each output, as kernels.ops.quantize_int8."""
    weight = weight.float()
    scales = (weight.abs().amax(1) / _LEVELS).clamp_min(_LEAST)
    return torch.round(weight / scales[:, None]).to(torch.int8), scales


def quantize_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Levels, scales and zero points of each group, as kernels.ops.quantize_int4."""
    groups = weight.float().view(weight.shape[0], -1, group)
    low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
    scales = ((high - low) / 15).clamp_min(_LEAST).to(torch.bfloat16)
    zeros = torch.round(-low / scales.float()).clamp(0, 15)
    levels = torch.round((groups / scales.float()[:, :, None] + zeros[:, :, None]).clamp(0, 15))
    return levels.to(torch.uint8).flatten(1), scales, zeros.to(torch.uint8)


def pack_int8(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Levels in panels as the products read them, as kernels.ops.pack_int8."""
    padded = F.pad(levels, (0, -levels.shape[1] % _TILE, 0, -levels.shape[0] % PANEL))
    panels = padded.view(-1, PANEL, padded.shape[1] // _QUAD, _QUAD).transpose(1, 2).contiguous()
    return panels, 128 * padded.sum(1, dtype=torch.int32)


def unpack_int8(panels: Tensor) -> Tensor:
    """The levels, with the rows and columns that packing added."""
    return panels.transpose(1, 2).flatten(2).flatten(0, 1)


def pack_int4(levels: Tensor) -> Tensor:
    """Levels in panels as the products read them, as kernels.ops.pack_int4."""
    padded = F.pad(levels, (0, 0, 0, -levels.shape[0] % PANEL)).view(-1, PANEL, levels.shape[1] // (2 * _QUAD), 2, _QUAD)
    return (padded[:, :, :, 0] | padded[:, :, :, 1] << 4).transpose(1, 2).contiguous()


def unpack_int4(panels: Tensor) -> Tensor:
    """The levels, with the rows that packing added."""
    halves = panels.transpose(1, 2)
    return torch.stack((halves & 15, halves >> 4), dim=3).flatten(2).flatten(0, 1)


def pack_scales(scales: Tensor) -> Tensor:
    """scales or zero points [N, groups] -> [N / 32, groups, 32], N rounded up."""
    return F.pad(scales, (0, 0, 0, -scales.shape[0] % PANEL)).view(-1, PANEL, scales.shape[1]).transpose(1, 2).contiguous()


def unpack_scales(packed: Tensor) -> Tensor:
    """Scales or zero points, with the rows that packing added."""
    return packed.transpose(1, 2).flatten(0, 1)


def _exact_product(levels: Tensor, weights: Tensor) -> Tensor:
    """Products of integers below 2^53 are exact in float64, whatever the order of the sums."""
    return levels.double() @ weights.double().T
