"""Addition to the residual stream, and the norm of the sum."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.rms_norm import normalised
from kernels.pypto.tiles import add_norm_tiles


@pypto.frontend.jit()
def add_rms_norm_kernel(
    x: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    residual: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    weight: pypto.Tensor([...], pypto.DT_BF16),
    normed: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    total: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    eps: float,
    loop_rows: int,
    task_rows: int,
):
    rows = x.shape[0]
    width = x.shape[1]
    pypto.set_vec_tile_shapes(1, width)
    scale = pypto.cast(pypto.reshape(weight, [1, width]), pypto.DT_FP32)
    for index in pypto.loop((rows + loop_rows - 1) // loop_rows, name="TILES", idx_name="index"):
        start = index * loop_rows
        valid = pypto.min(loop_rows, rows - start)
        pypto.set_vec_tile_shapes(task_rows, width)
        left = pypto.cast(pypto.view(x, [loop_rows, width], [start, 0], valid_shape=[valid, width]), pypto.DT_FP32)
        right = pypto.cast(pypto.view(residual, [loop_rows, width], [start, 0], valid_shape=[valid, width]), pypto.DT_FP32)
        stored = pypto.cast(left + right, pypto.DT_BF16)
        pypto.assemble(stored, [start, 0], total)
        pypto.assemble(normalised(pypto.cast(stored, pypto.DT_FP32), scale, eps), [start, 0], normed)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See kernels.ops.add_rms_norm."""
    normed, total = torch.empty_like(x), torch.empty_like(x)
    add_rms_norm_kernel(x, residual, weight, normed, total, eps, *add_norm_tiles(*x.shape))
    return normed, total
