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
    columns_tile: int,
    depth: int,
    x_depth: int,
    weight_depth: int,
    merged: int,
):
    rows = x.shape[0]
    width = x.shape[1]
    pypto.set_cube_tile_shapes([rows_tile, rows_tile], [depth, x_depth, weight_depth], [columns_tile, columns_tile])
    pypto.set_pass_options(cube_l1_reuse_setting={-1: merged})
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
    columns_tile: int,
    depth: int,
    x_depth: int,
    weight_depth: int,
    merged: int,
):
    rows = x.shape[0]
    width = x.shape[1]
    columns = weight.shape[0]
    pypto.set_cube_tile_shapes([rows_tile, rows_tile], [depth, x_depth, weight_depth], [columns_tile, columns_tile])
    pypto.set_pass_options(cube_l1_reuse_setting={-1: merged})
    # The bias enters where the products are summed, which takes it in fp32 only.
    pypto.set_vec_tile_shapes(1, pypto.min(columns, 16384))
    offset = pypto.cast(pypto.reshape(bias, [1, columns]), pypto.DT_FP32)
    for index in pypto.loop((rows + rows_tile - 1) // rows_tile, name="TILES", idx_name="index"):
        start = index * rows_tile
        valid = pypto.min(rows_tile, rows - start)
        part = pypto.view(x, [rows_tile, width], [start, 0], valid_shape=[valid, width])
        product = pypto.matmul(part, weight, pypto.DT_BF16, b_trans=True, extend_params={"bias_tensor": offset})
        pypto.assemble(product, [start, 0], out)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Products of rows with a weight, as kernels.ops.linear; the sums are kept in fp32 and rounded once."""
    rows, (out_features, in_features) = x.shape[0], weight.shape
    out = torch.empty(rows, out_features, dtype=x.dtype, device=x.device)
    tiles = linear_tiles(rows, out_features, in_features)
    if bias is None:
        linear_kernel(x, weight, out, *tiles)
    else:
        biased_linear_kernel(x, weight, bias, out, *tiles)
    return out
