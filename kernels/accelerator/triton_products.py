"""Matrix products of rows with weights for CUDA, written in Triton: batch-invariant.

Every product is cut into the same tiles, whatever the number of rows, and a tile adds over the whole depth in order: no split of the
depth, no choice of kernel by the number of rows. Operands are multiplied as they are (no tf32) and added in fp32. Programs that share a
tile of the weights follow one another, so that it is read from memory once.

    row tiles   t0   t1   t2
    columns 0    0    1    2     programs in order
    columns 1    3    4    5
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference.moe import weighted_sum
from kernels.reference.rows import swiglu

BLOCK_ROWS = 64  # what one row costs more than it needs hides behind reading the weights
_BLOCK_COLUMNS = 64
_FEW_COLUMNS, _FEWER_BLOCK_COLUMNS = 8192, 32  # narrow weights: more programs, which read in parallel
_BLOCK_DEPTH_BYTES = 128


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])  # one kernel for every number of rows
def _products(  # noqa: PLR0913, PLR0917 - the tensors and numbers of a launch
    x,
    weights,
    bias,
    out,
    tile_groups,
    tile_starts,
    tile_ends,
    num_rows,
    num_columns,
    depth,
    num_tiles,
    grouped: tl.constexpr,
    has_bias: tl.constexpr,
    widen: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
):
    tile, column_tile = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    if grouped:
        start, end = tl.load(tile_starts + tile), tl.load(tile_ends + tile)
        weights += tl.load(tile_groups + tile) * num_columns * depth
    else:
        start, end = tile.to(tl.int64) * block_rows, num_rows
    if start < end:
        rows = start + tl.arange(0, block_rows)
        columns = (column_tile * block_columns + tl.arange(0, block_columns)).to(tl.int64)
        accumulator = tl.zeros((block_rows, block_columns), dtype=tl.float32)
        for first in range(0, depth, block_depth):
            places = first + tl.arange(0, block_depth)
            inside = places[None, :] < depth
            left = tl.load(x + rows[:, None] * depth + places[None, :], mask=(rows[:, None] < end) & inside, other=0.0)
            right = tl.load(weights + columns[:, None] * depth + places[None, :], mask=(columns[:, None] < num_columns) & inside, other=0.0)
            if widen:
                left, right = left.to(tl.float32), right.to(tl.float32)
            accumulator = tl.dot(left, tl.trans(right), accumulator, input_precision="ieee")
        if has_bias:
            accumulator += tl.load(bias + columns, mask=columns < num_columns, other=0.0).to(tl.float32)[None, :]
        place = out + rows[:, None] * num_columns + columns[None, :]
        tl.store(place, accumulator.to(out.dtype.element_ty), mask=(rows[:, None] < end) & (columns[None, :] < num_columns))


# Triton's interpreter multiplies what numpy knows: not bfloat16.
_WIDEN = not isinstance(_products, triton.JITFunction)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Runs of rows, each with the weights of one group; those that are too many are empty. All [num_tiles] int64, on the device."""

    groups: Tensor
    starts: Tensor
    ends: Tensor

    @classmethod
    def of(cls, chosen: Tensor, num_groups: int) -> "_Tiles":
        """For rows sorted by group; `chosen` [R] is the group of each, in any order. The host is asked nothing."""
        num_tiles = chosen.shape[0] // BLOCK_ROWS + min(chosen.shape[0], num_groups)
        counts = torch.zeros(num_groups, dtype=torch.int64, device=chosen.device).scatter_add_(0, chosen, torch.ones_like(chosen))
        tiles = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
        row_ends, tile_ends = counts.cumsum(0), tiles.cumsum(0)
        index = torch.arange(num_tiles, device=chosen.device)
        groups = torch.searchsorted(tile_ends, index, right=True).clamp(max=num_groups - 1)
        starts = (row_ends - counts)[groups] + (index - (tile_ends - tiles)[groups]) * BLOCK_ROWS
        return cls(groups, starts, row_ends[groups])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K], all contiguous and of one type."""
    return _launch(x, weight, bias, None)


def moe_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """As kernels.reference.moe.moe_experts, but the host does not learn how many rows an expert has, so that a graph can hold it."""
    num_rows, top_k = expert_ids.shape
    chosen = expert_ids.flatten()
    by_expert = torch.argsort(chosen, stable=True)
    tiles = _Tiles.of(chosen, gate_up.shape[0])
    inner = swiglu(_launch(x[by_expert // top_k], gate_up, None, tiles))
    outputs = x.new_empty(num_rows * top_k, x.shape[1])
    outputs[by_expert] = _launch(inner, down, None, tiles)
    return weighted_sum(outputs.view(num_rows, top_k, -1), weights).to(x.dtype)


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None, tiles: _Tiles | None) -> Tensor:
    """x [R, K] times weight [N, K], or [E, N, K] with `tiles`."""
    x = x.contiguous()
    (num_rows, depth), num_columns = x.shape, weight.shape[-2]
    out = x.new_empty(num_rows, num_columns)
    num_tiles = triton.cdiv(num_rows, BLOCK_ROWS) if tiles is None else tiles.groups.shape[0]
    block_columns = _FEWER_BLOCK_COLUMNS if num_columns <= _FEW_COLUMNS else _BLOCK_COLUMNS
    tables = (x, x, x) if tiles is None else (tiles.groups, tiles.starts, tiles.ends)
    _products[num_tiles * triton.cdiv(num_columns, block_columns),](
        x,
        weight,
        weight if bias is None else bias,
        out,
        *tables,
        num_rows,
        num_columns,
        depth,
        num_tiles,
        grouped=tiles is not None,
        has_bias=bias is not None,
        widen=_WIDEN,
        block_rows=BLOCK_ROWS,
        block_columns=block_columns,
        block_depth=_BLOCK_DEPTH_BYTES // x.element_size(),
        num_warps=4,
        num_stages=3,
    )
    return out
