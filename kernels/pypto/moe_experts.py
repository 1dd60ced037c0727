"""The experts' feed-forward parts over rows grouped by expert, and the weighted sum of a row's experts."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import expert_tiles, rows_per_tile


@pypto.frontend.jit(pass_options={"vec_nbuffer_setting": {-1: 4}})
def grouped_mlp_kernel(
    x: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    sources: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    places: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    starts: pypto.Tensor([...], pypto.DT_INT32),
    gate_up: pypto.Tensor([...], pypto.DT_BF16),
    down: pypto.Tensor([...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    tile: int,
    stored_rows: int,
    columns: int,
    depth: int,
    load: int,
):
    width = x.shape[1]
    inner = down.shape[2]
    experts = down.shape[0]
    up_matrices = pypto.reshape(gate_up, [experts * 2 * inner, width], inplace=True)
    down_matrices = pypto.reshape(down, [experts * width, inner], inplace=True)
    for expert in pypto.loop(experts, name="EXPERTS", idx_name="expert"):
        begin = starts[expert]
        begin.as_variable()
        end = starts[expert + 1]
        end.as_variable()
        for index in pypto.loop((end - begin + tile - 1) // tile, name="TILES", idx_name="index"):
            start = begin + index * tile
            valid = pypto.min(tile, end - start)
            pypto.set_vec_tile_shapes(tile, columns)
            rows = pypto.index_select(x, 0, pypto.view(sources, [tile], [start], valid_shape=[valid]))
            pypto.set_cube_tile_shapes([tile, tile], [depth, load], [columns, columns])
            gate_matrix = pypto.view(up_matrices, [inner, width], [expert * 2 * inner, 0])
            up_matrix = pypto.view(up_matrices, [inner, width], [(expert * 2 + 1) * inner, 0])
            gate = _rounded(pypto.matmul(rows, gate_matrix, pypto.DT_FP32, b_trans=True))
            up = _rounded(pypto.matmul(rows, up_matrix, pypto.DT_FP32, b_trans=True))
            silu = _rounded(gate / (pypto.exp(gate * -1.0) + 1.0))
            active = pypto.cast(silu * up, pypto.DT_BF16)
            down_matrix = pypto.view(down_matrices, [width, inner], [expert * width, 0])
            result = pypto.matmul(active, down_matrix, pypto.DT_BF16, b_trans=True)
            pypto.set_vec_tile_shapes(stored_rows, width)  # whole rows only
            out[:] = pypto.scatter_update(out, -2, pypto.view(places, [tile, 1], [start, 0], valid_shape=[valid, 1]), result)


def _rounded(x):
    return pypto.cast(pypto.cast(x, pypto.DT_BF16), pypto.DT_FP32)


@pypto.frontend.jit()
def weighted_sum_kernel(
    parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    weights: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    tile: int,
):
    rows = out.shape[0]
    width = out.shape[1]
    for index in pypto.loop((rows + tile - 1) // tile, name="TILES", idx_name="index"):
        start = index * tile
        valid = pypto.min(tile, rows - start)
        pypto.set_vec_tile_shapes(tile, width)
        terms = []
        for slot in range(weights.shape[1]):
            part = pypto.view(parts, [tile, width], [start, slot * width], valid_shape=[valid, width])
            weight = pypto.view(weights, [tile, 1], [start, slot], valid_shape=[valid, 1])
            terms.append(pypto.cast(part, pypto.DT_FP32) * weight)
        pypto.assemble(pypto.cast(_in_order(terms), pypto.DT_BF16), [start, 0], out)


def _in_order(terms):
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def moe_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The experts of each row, as kernels.reference.moe.moe_experts, of gate_up [E, 2I, H] (gates first) and down [E, H, I]."""
    num_rows, top_k = expert_ids.shape
    width = x.shape[1]
    ordered, order = torch.sort(expert_ids.flatten(), stable=True)
    experts = torch.arange(down.shape[0] + 1, dtype=ordered.dtype, device=x.device)
    starts = torch.searchsorted(ordered, experts, out_int32=True)
    order = order.int()
    parts = x.new_empty(num_rows * top_k, width)
    grouped_mlp_kernel(x, order // top_k, order.unsqueeze(1), starts, gate_up, down, parts, *expert_tiles(width, down.shape[2]))
    out = torch.empty_like(x)
    weighted_sum_kernel(parts.view(num_rows, top_k * width), weights, out, rows_per_tile(width))
    return out
