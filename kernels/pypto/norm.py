"""Root mean square norm of rows, and of their sum with the residual stream."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import add_norm_tiles, norm_tiles


def normalised(rows, scale, eps):
    """rows [n, H] in fp32, scale [1, H] -> bf16 [n, H]; rounded to bf16 before the scale, as the torch implementation does."""
    mean = pypto.sum(rows * rows, -1, True) * (1.0 / rows.shape[1])
    rounded = pypto.cast(pypto.cast(rows / pypto.sqrt(mean + eps), pypto.DT_BF16), pypto.DT_FP32)
    return pypto.cast(rounded * scale, pypto.DT_BF16)


@pypto.frontend.jit()
def rms_norm_kernel(
    x: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    weight: pypto.Tensor([...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
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
        part = pypto.cast(pypto.view(x, [loop_rows, width], [start, 0], valid_shape=[valid, width]), pypto.DT_FP32)
        pypto.assemble(normalised(part, scale, eps), [start, 0], out)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm of rows, as kernels.ops.rms_norm."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows)
    rms_norm_kernel(rows, weight, out, eps, *norm_tiles(*rows.shape))
    return out.view(x.shape)


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
    for index in pypto.loop((rows + loop_rows - 1) // loop_rows, name="TILES", idx_name="index"):
        start = index * loop_rows
        valid = pypto.min(loop_rows, rows - start)
        # A turn of a task's rows is one task; else the weight is converted by a task that all the others wait for.
        pypto.set_pass_options(sg_set_scope=1 if loop_rows == task_rows else -1)
        pypto.set_vec_tile_shapes(1, width)
        scale = pypto.cast(pypto.reshape(weight, [1, width]), pypto.DT_FP32)
        pypto.set_vec_tile_shapes(task_rows, width)
        left = pypto.cast(pypto.view(x, [loop_rows, width], [start, 0], valid_shape=[valid, width]), pypto.DT_FP32)
        right = pypto.cast(pypto.view(residual, [loop_rows, width], [start, 0], valid_shape=[valid, width]), pypto.DT_FP32)
        stored = pypto.cast(left + right, pypto.DT_BF16)
        pypto.assemble(stored, [start, 0], total)
        pypto.assemble(normalised(pypto.cast(stored, pypto.DT_FP32), scale, eps), [start, 0], normed)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Addition to the residual stream and the norm of the sum, as kernels.ops.add_rms_norm."""
    normed, total = torch.empty_like(x), torch.empty_like(x)
    add_rms_norm_kernel(x, residual, weight, normed, total, eps, *add_norm_tiles(*x.shape))
    return normed, total
