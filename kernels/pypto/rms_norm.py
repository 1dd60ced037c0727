"""Root mean square norm of rows."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import rows_per_tile


@pypto.frontend.jit()
def rms_norm_kernel(
    x: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    weight: pypto.Tensor([...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    eps: float,
    tile: int,
):
    rows = x.shape[0]
    width = x.shape[1]
    pypto.set_vec_tile_shapes(1, width)
    scale = pypto.cast(pypto.reshape(weight, [1, width]), pypto.DT_FP32)
    for index in pypto.loop((rows + tile - 1) // tile, name="TILES", idx_name="index"):
        start = index * tile
        valid = pypto.min(tile, rows - start)
        pypto.set_vec_tile_shapes(tile, width)
        part = pypto.cast(pypto.view(x, [tile, width], [start, 0], valid_shape=[valid, width]), pypto.DT_FP32)
        mean = pypto.sum(part * part, -1, True) * (1.0 / width)
        rounded = pypto.cast(pypto.cast(part / pypto.sqrt(mean + eps), pypto.DT_BF16), pypto.DT_FP32)
        pypto.assemble(pypto.cast(rounded * scale, pypto.DT_BF16), [start, 0], out)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See kernels.ops.rms_norm."""
    out = torch.empty_like(x)
    rms_norm_kernel(x.view(-1, x.shape[-1]), weight, out.view(-1, x.shape[-1]), eps, rows_per_tile(x.shape[-1]))
    return out
