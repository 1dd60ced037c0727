"""Causal attention over the paged cache: one kernel for single rows, one for runs of rows. A row comes out alike from both."""

import torch
from torch import Tensor

from kernels.pypto.paged_decode import paged_decode
from kernels.pypto.paged_prefill import paged_prefill


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, query_starts: Tensor, positions: Tensor, scale: float, window: int = 0
) -> Tensor:
    """Causal attention over the paged cache, as kernels.ops.paged_attention. Positions rise within a sequence."""
    at = positions.to(torch.int32)
    num_rows, num_sequences = q.shape[0], page_table.shape[0]
    if num_rows == num_sequences:
        return paged_decode(q, k_cache, v_cache, page_table, at, scale, window)
    begins, ends = query_starts[:-1], query_starts[1:]
    if num_sequences == 1:
        return paged_prefill(q, k_cache, v_cache, page_table, begins, ends, at, scale, window)
    single = ends - begins == 1
    out = paged_prefill(q, k_cache, v_cache, page_table, begins, ends.where(~single, begins), at, scale, window)
    rows = begins.clamp(max=num_rows - 1)
    decoded = paged_decode(q[rows], k_cache, v_cache, page_table, at[rows].masked_fill(~single, -1), scale, window)
    # On each row one of them is +0: at most a -0 loses its sign, which sums of products, as they begin with +0, are not.
    return out.index_add_(0, rows, decoded)
