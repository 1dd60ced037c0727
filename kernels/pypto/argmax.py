"""The greatest logit of each row, the lowest token id where it occurs more than once."""

import pypto
import torch
from torch import Tensor


@pypto.frontend.jit()
def argmax_kernel(
    logits: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    index: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    greatest: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    tile: int,
):
    width = logits.shape[1]
    for row in pypto.loop(logits.shape[0], name="ROWS", idx_name="row"):
        pypto.set_vec_tile_shapes(1, tile)
        value, place = pypto.topk(pypto.view(logits, [1, width], [row, 0]), 1, -1, True)
        pypto.assemble(place, [row, 0], index)
        pypto.assemble(value, [row, 0], greatest)


def argmax(logits: Tensor) -> Tensor:
    """See kernels.ops.argmax."""
    index = torch.empty(logits.shape[0], 1, dtype=torch.int32, device=logits.device)
    argmax_kernel(logits, index, torch.empty_like(index, dtype=torch.float32), 2048)
    return index.view(-1).to(torch.int64)
