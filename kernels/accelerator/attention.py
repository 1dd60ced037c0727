"""Causal attention over the paged cache, row by row, without synchronizing with the host.

Every row meets all keys that the width of the page table allows; those that it must not see have a probability of zero. Sums are pairwise
over absolute positions, so a row's result depends neither on that width, nor on how rows and keys are cut to bound the memory that products
take.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.accelerator.rows import next_power_of_two, sum_features, sum_keys

_BLOCK_ROWS = 64
_LEAST_KEYS = 64
_MAX_PRODUCTS = 1 << 26  # elements of fp32 that exist at a time
_MASKED = -1e30


@dataclass(frozen=True, slots=True)
class _Rows:
    """R rows, and what each of them sees."""

    q: Tensor  # [R, Hk, G, D] fp32, G query heads per kv head
    tables: Tensor  # [R, P] int64
    positions: Tensor  # [R] int64
    exists: Tensor  # [R] bool
    window: int

    def load(self, cache: Tensor, start: int, num_keys: int) -> tuple[Tensor, Tensor]:
        """The cached rows at positions start .. start + num_keys in fp32 [R, L, Hk, D], zero unless visible, and which are: [R, L]."""
        page_tokens = cache.shape[1]
        keys = torch.arange(start, start + num_keys, device=cache.device)
        page_index = keys // page_tokens
        pages = self.tables[:, page_index.clamp(max=self.tables.shape[1] - 1)]
        distance = self.positions[:, None] - keys
        seen = (distance >= 0) & self.exists[:, None]
        if self.window:
            seen &= distance < self.window
        visible = seen & (pages >= 0) & (page_index < self.tables.shape[1])
        slots = pages.clamp(min=0) * page_tokens + keys % page_tokens
        # Slots that hold nothing may hold NaN, and 0 * NaN is NaN: they are cleared, not only masked.
        return cache.flatten(0, 1)[slots].float().masked_fill(~visible[:, :, None, None], 0.0), visible


def paged_attention(  # noqa: PLR0913, PLR0917 - a batch is this many columns
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, query_starts: Tensor, positions: Tensor, scale: float, window: int = 0
) -> Tensor:
    """Causal attention over the paged cache, as kernels.reference.attention.paged_attention."""
    index = torch.arange(q.shape[0], device=q.device)
    sequences = torch.searchsorted(query_starts.long(), index, right=True) - 1
    tables = page_table.long()[sequences.clamp(0, page_table.shape[0] - 1)]
    by_kv_head = q.reshape(q.shape[0], k_cache.shape[2], -1, q.shape[2]).float()
    columns = by_kv_head, tables, positions, index < query_starts[-1]
    blocks = zip(*(torch.split(column, _BLOCK_ROWS) for column in columns), strict=True)
    rows = [_Rows(q_part, table, at, exists, window) for q_part, table, at, exists in blocks]
    return torch.cat([_attend(block, k_cache, v_cache, scale) for block in rows]).flatten(1, 2).to(q.dtype)


def _attend(rows: _Rows, k_cache: Tensor, v_cache: Tensor, scale: float) -> Tensor:
    """[R, Hk, G, D] fp32."""
    capacity = rows.tables.shape[1] * k_cache.shape[1]
    chunk = _keys_at_a_time(rows.q, capacity)
    starts = range(0, capacity, chunk)
    scores = torch.cat([_score(rows, k_cache, start, chunk, scale) for start in starts], dim=1)
    probabilities = torch.exp(scores - scores.amax(1, keepdim=True)).masked_fill(scores <= _MASKED, 0.0)
    parts = torch.split(probabilities, chunk, dim=1)
    accumulators = [_weigh(rows, v_cache, start, part) for start, part in zip(starts, parts, strict=True)]
    denominator = _sum_chunks([sum_keys(part) for part in parts]).unsqueeze(-1)
    # Rows of no sequence have seen nothing: zero by one, not by zero.
    return _sum_chunks(accumulators) / denominator.masked_fill(~rows.exists[:, None, None, None], 1.0)


def _keys_at_a_time(q: Tensor, capacity: int) -> int:
    """A power of two, because chunks are sub-trees of the sum over all keys."""
    affordable = next_power_of_two(_MAX_PRODUCTS // q.numel() + 1) // 2
    return min(max(affordable, _LEAST_KEYS), next_power_of_two(capacity))


def _score(rows: _Rows, k_cache: Tensor, start: int, num_keys: int, scale: float) -> Tensor:
    """[R, L, Hk, G]."""
    keys, visible = rows.load(k_cache, start, num_keys)
    products = keys.unsqueeze(3) * rows.q.unsqueeze(1)
    return (sum_features(products).squeeze(-1) * scale).masked_fill(~visible[:, :, None, None], _MASKED)


def _weigh(rows: _Rows, v_cache: Tensor, start: int, probabilities: Tensor) -> Tensor:
    """The values that `probabilities` [R, L, Hk, G] belong to, weighted and added: [R, Hk, G, D]."""
    values, _ = rows.load(v_cache, start, probabilities.shape[1])
    return sum_keys(probabilities.unsqueeze(-1) * values.unsqueeze(3))


def _sum_chunks(parts: list[Tensor]) -> Tensor:
    missing = next_power_of_two(len(parts)) - len(parts)
    return sum_keys(torch.stack([*parts, *[torch.zeros_like(parts[0])] * missing], dim=1))
