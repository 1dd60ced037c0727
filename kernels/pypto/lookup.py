"""Look-up of token embeddings, and of the greatest logit of each row."""

import pypto
import torch
from torch import Tensor


@pypto.frontend.jit()
def embedding_kernel(
    ids: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    table: pypto.Tensor([...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
):
    width = table.shape[1]
    pypto.set_vec_tile_shapes(1, width)
    for row in pypto.loop(ids.shape[0], name="ROWS", idx_name="row"):
        token = ids[row]
        token.as_variable()
        pypto.assemble(pypto.clone(pypto.view(table, [1, width], [token, 0])), [row, 0], out)


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Rows of a table, as kernels.ops.embedding."""
    out = table.new_empty(ids.shape[0], table.shape[1])
    embedding_kernel(ids.to(torch.int32), table, out)
    return out


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
    """The greatest logit of each row, the lowest token id among equals, as kernels.ops.argmax."""
    index = torch.empty(logits.shape[0], 1, dtype=torch.int32, device=logits.device)
    argmax_kernel(logits, index, torch.empty_like(index, dtype=torch.float32), 2048)
    return index.view(-1).to(torch.int64)
