"""Attention over the paged cache by npu_fused_infer_attention_score, which takes the lengths of sequences from the host."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernels.cann.batch_memo import BatchMemo

_MASK_SIZE = 2048  # of the triangle that its mode for causal attention wants, whatever the lengths
_CAUSAL = 3  # the last row of a sequence sees all its keys, the one before it all but one


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Of a batch those that have rows."""

    row_ends: list[int]  # the row after the last of each
    lengths: list[int]  # keys that its last row sees
    page_table: Tensor  # [B, P] int32, page 0 where there is none


class PagedAttention:
    """kernels.ops.paged_attention without a window. Waits for the device once for every batch, so that it cannot be captured."""

    def __init__(self) -> None:
        self._sequences = BatchMemo(_read)
        self._masks: dict[torch.device, Tensor] = {}

    def __call__(  # noqa: PLR0913, PLR0917 - a batch is this many columns
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        query_starts: Tensor,
        positions: Tensor,
        scale: float,
        window: int = 0,
    ) -> Tensor:
        """Queries [T, Hq, D] are its layout TND, pages [page_tokens, Hk * D] what it calls BnBsH."""
        assert window == 0
        sequences = self._sequences(page_table, query_starts, positions)
        if not sequences.row_ends:
            return torch.zeros_like(q)
        num_rows = sequences.row_ends[-1]
        attended = torch.ops.npu.npu_fused_infer_attention_score(
            q[:num_rows].contiguous(),
            k_cache.flatten(2),
            v_cache.flatten(2),
            atten_mask=self._mask(q.device),
            actual_seq_lengths=sequences.row_ends,
            actual_seq_lengths_kv=sequences.lengths,
            block_table=sequences.page_table,
            num_heads=q.shape[1],
            num_key_value_heads=k_cache.shape[2],
            scale=scale,
            input_layout="TND",
            sparse_mode=_CAUSAL,
            block_size=k_cache.shape[1],
        )[0]
        return attended if num_rows == len(q) else torch.cat((attended, attended.new_zeros(len(q) - num_rows, *q.shape[1:])))

    def _mask(self, device: torch.device) -> Tensor:
        if device not in self._masks:
            self._masks[device] = torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.int8).triu(1).to(device)
        return self._masks[device]


def takes(q: Tensor, k_cache: Tensor, page_table: Tensor, window: int) -> bool:
    """Whether it takes heads and pages as they are, by its documentation."""
    _, page_tokens, num_kv_heads, head_dim = k_cache.shape
    return (
        window == 0
        and head_dim in (64, 128)
        and page_tokens % 16 == 0
        and page_tokens <= 512
        and num_kv_heads * head_dim < 65536
        and q.shape[1] // num_kv_heads <= 64
        and len(page_table) <= 4096
    )


def _read(page_table: Tensor, query_starts: Tensor, positions: Tensor) -> _Sequences:
    starts = query_starts.tolist()
    lines = [line for line, (start, end) in enumerate(pairwise(starts)) if end > start]
    row_ends = [starts[line + 1] for line in lines]
    if not lines:
        return _Sequences([], [], page_table)
    places = positions.tolist()
    table = page_table if len(lines) == len(page_table) else page_table[torch.tensor(lines, device=page_table.device)]
    return _Sequences(row_ends, [places[end - 1] + 1 for end in row_ends], table.clamp(min=0))
