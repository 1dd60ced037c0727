"""The leading values of each row: where top-k and top-p cut a row of scores before a token is drawn."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import top_k_tile


@pypto.frontend.jit()
def top_k_kernel(
    values: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    leading: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    ids: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    tile: int,
):
    width = values.shape[1]
    count = leading.shape[1]
    for row in pypto.loop(values.shape[0], name="ROWS", idx_name="row"):
        pypto.set_vec_tile_shapes(1, tile)
        value, place = pypto.topk(pypto.view(values, [1, width], [row, 0]), count, -1, True)
        pypto.assemble(value, [row, 0], leading)
        pypto.assemble(place, [row, 0], ids)


def top_k(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """values [rows, V] fp32 -> the `count` greatest values of each row, falling, and their ids int64, each [rows, count].

    In which order equal values come, and which of those equal to the last one are in, is open, as with torch.topk.
    """
    leading = torch.empty(values.shape[0], count, dtype=torch.float32, device=values.device)
    ids = torch.empty_like(leading, dtype=torch.int32)
    top_k_kernel(values, leading, ids, top_k_tile(count))
    return leading, ids.long()
