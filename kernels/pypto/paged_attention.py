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
    if q.shape[0] == page_table.shape[0]:
        return paged_decode(q, k_cache, v_cache, page_table, at, scale, window)
    return paged_prefill(q, k_cache, v_cache, page_table, query_starts, at, scale, window)
