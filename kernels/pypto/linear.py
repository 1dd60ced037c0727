"""Matrix products of rows with weights as they are stored, [out, in]."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import linear_tiles


@pypto.frontend.jit()
def linear_kernel(
    x: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    weight: pypto.Tensor([...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    rows_tile: int,
    in_tile: int,
    out_tile: int,
):
    rows = x.shape[0]
    width = x.shape[1]
    pypto.set_cube_tile_shapes([rows_tile, rows_tile], [in_tile, in_tile], [out_tile, out_tile])
    for index in pypto.loop((rows + rows_tile - 1) // rows_tile, name="TILES", idx_name="index"):
        start = index * rows_tile
        valid = pypto.min(rows_tile, rows - start)
        part = pypto.view(x, [rows_tile, width], [start, 0], valid_shape=[valid, width])
        pypto.assemble(pypto.matmul(part, weight, pypto.DT_BF16, b_trans=True), [start, 0], out)


@pypto.frontend.jit()
def biased_linear_kernel(
    x: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    weight: pypto.Tensor([...], pypto.DT_BF16),
    bias: pypto.Tensor([...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    rows_tile: int,
    in_tile: int,
    out_tile: int,
):
    rows = x.shape[0]
    width = x.shape[1]
    columns = weight.shape[0]
    pypto.set_cube_tile_shapes([rows_tile, rows_tile], [in_tile, in_tile], [out_tile, out_tile])
    for index in pypto.loop((rows + rows_tile - 1) // rows_tile, name="TILES", idx_name="index"):
        start = index * rows_tile
        valid = pypto.min(rows_tile, rows - start)
        part = pypto.view(x, [rows_tile, width], [start, 0], valid_shape=[valid, width])
        product = pypto.matmul(part, weight, pypto.DT_FP32, b_trans=True)
        pypto.set_vec_tile_shapes(rows_tile, out_tile)
        offset = pypto.cast(pypto.reshape(bias, [1, columns]), pypto.DT_FP32)
        pypto.assemble(pypto.cast(product + offset, pypto.DT_BF16), [start, 0], out)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K], summed in fp32 and rounded once."""
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    if bias is None:
        linear_kernel(x, weight, out, *linear_tiles(*weight.shape))
    else:
        biased_linear_kernel(x, weight, bias, out, *linear_tiles(*weight.shape))
    return out
