"""The greatest values of each row: where top-k and top-p cut a row of weights before a token is drawn."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import top_k_tile


@pypto.frontend.jit()
def top_k_kernel(
    values: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    leading: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    tile: int,
):
    width = values.shape[1]
    count = leading.shape[1]
    for row in pypto.loop(values.shape[0], name="ROWS", idx_name="row"):
        pypto.set_vec_tile_shapes(1, tile)
        value, _ = pypto.topk(pypto.view(values, [1, width], [row, 0]), count, -1, True)
        pypto.assemble(value, [row, 0], leading)


def top_k(values: Tensor, count: int) -> Tensor:
    """The greatest values of each row, as kernels.ops.top_k."""
    leading = torch.empty(values.shape[0], count, dtype=torch.float32, device=values.device)
    top_k_kernel(values, leading, top_k_tile(count))
    return leading
