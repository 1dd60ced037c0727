"""Causal attention over the paged cache, by fixed tiles so that it is batch-invariant.

    sequence b      rows query_starts[b] .. query_starts[b+1], cut into query tiles of QUERY_TILE rows (the last one padded)
    keys 0 .. p     cut into key tiles of KEY_TILE at absolute positions, visited in order, softmax carried along in fp32

A row meets the same key tiles in the same order wherever it stands and however its sequence was chunked. A tile that lies wholly
outside what a row sees leaves its state as it was, bit for bit: the running max stays, sums are rescaled by exp(0) = 1, zeros are added.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_TILE = 8
KEY_TILE = 64
_MASKED = -1e30  # finite: a row whose keys are all masked so far must not make NaN of inf - inf


@dataclass(frozen=True, slots=True)
class _QueryTiles:
    """N query tiles: the rows of each, which of them exist, their positions, and the tile's line of the page table."""

    rows: Tensor  # [N, QUERY_TILE]
    exists: Tensor  # [N, QUERY_TILE] bool
    positions: Tensor  # [N, QUERY_TILE]
    pages: Tensor  # [N, P]

    @property
    def last_positions(self) -> Tensor:
        return self.positions.amax(1)


def paged_attention(  # noqa: PLR0913, PLR0917 - a batch is this many columns
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, query_starts: Tensor, positions: Tensor, scale: float, window: int = 0
) -> Tensor:
    """Attention of rows over the cached keys and values of their own sequence.

    q [T, Hq, D]; caches [pages, page_tokens, Hk, D], Hq a multiple of Hk; page_table [B, P] int32, -1 where there is no page;
    query_starts [B + 1] int32; positions [T] int64. A row at position p sees the keys p - window + 1 .. p, or 0 .. p without a
    window (0). Returns [T, Hq, D] in q's dtype; rows of no sequence are zero. The keys of the rows themselves are in the cache.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    tiles = _cut(page_table, query_starts, positions)
    if tiles.rows.shape[0] == 0:
        return out
    result = _attend(_by_kv_head(q[tiles.rows], k_cache.shape[2]), k_cache, v_cache, tiles, scale, window)
    num_tiles, num_kv_heads, _, head_dim = result.shape
    by_row = (
        result.view(num_tiles, num_kv_heads, -1, QUERY_TILE, head_dim).permute(0, 3, 1, 2, 4).reshape(num_tiles, QUERY_TILE, -1, head_dim)
    )
    out[tiles.rows[tiles.exists]] = by_row[tiles.exists].to(q.dtype)
    return out


def _cut(page_table: Tensor, query_starts: Tensor, positions: Tensor) -> _QueryTiles:
    starts = query_starts.long()
    num_tiles = (starts.diff() + QUERY_TILE - 1) // QUERY_TILE
    sequences = torch.repeat_interleave(num_tiles)
    tile_in_sequence = torch.arange(sequences.shape[0], device=starts.device) - (num_tiles.cumsum(0) - num_tiles)[sequences]
    rows = (starts[sequences] + tile_in_sequence * QUERY_TILE).unsqueeze(1) + torch.arange(QUERY_TILE, device=starts.device)
    exists = rows < starts[sequences + 1].unsqueeze(1)
    rows = rows.where(exists, rows[:, :1])
    return _QueryTiles(rows, exists, positions[rows], page_table[sequences].long())


def _by_kv_head(q: Tensor, num_kv_heads: int) -> Tensor:
    """[N, QUERY_TILE, Hq, D] -> [N, Hk, G * QUERY_TILE, D] fp32, G query heads per kv head."""
    num_tiles, _, _, head_dim = q.shape
    return (
        q.view(num_tiles, QUERY_TILE, num_kv_heads, -1, head_dim)
        .permute(0, 2, 3, 1, 4)
        .reshape(num_tiles, num_kv_heads, -1, head_dim)
        .float()
    )


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, tiles: _QueryTiles, scale: float, window: int) -> Tensor:
    group = q.shape[2] // QUERY_TILE
    row_positions = tiles.positions.repeat(1, group)[:, None, :, None]
    lowest = int(tiles.positions.min()) - window + 1 if window else 0
    first_tile = max(lowest, 0) // KEY_TILE * KEY_TILE
    running_max = q.new_full((*q.shape[:3], 1), _MASKED)
    denominator = torch.zeros_like(running_max)
    accumulator = torch.zeros_like(q)
    for start in range(first_tile, int(tiles.positions.max()) + 1, KEY_TILE):
        keys, values, key_positions = _load_key_tile(k_cache, v_cache, tiles, start)
        visible = key_positions <= row_positions
        if window:
            visible &= key_positions > row_positions - window
        scores = (q @ keys * scale).masked_fill(~visible, _MASKED)
        new_max = torch.maximum(running_max, scores.amax(-1, keepdim=True))
        rescale = torch.exp(running_max - new_max)
        probabilities = torch.exp(scores - new_max).masked_fill(~visible, 0.0)
        denominator = denominator * rescale + probabilities.sum(-1, keepdim=True)
        accumulator = accumulator * rescale + _weigh(probabilities, values, visible)
        running_max = new_max
    return accumulator / denominator + 0.0  # a zero is +0, whatever was multiplied by a probability of zero


def _weigh(probabilities: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """probabilities @ values, where a value that is not finite makes NaN of the rows that see it and is nothing to the others."""
    unsound = ~values.isfinite()
    if not unsound.any():
        return probabilities @ values
    seen = visible.expand(probabilities.shape).float() @ unsound.float()
    return (probabilities @ values.masked_fill(unsound, 0.0)).masked_fill(seen > 0, torch.nan)


def _load_key_tile(k_cache: Tensor, v_cache: Tensor, tiles: _QueryTiles, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [N, Hk, D, KEY_TILE] and values [N, Hk, KEY_TILE, D] in fp32 from position `start` on, zero where none is written."""
    page_tokens = k_cache.shape[1]
    key_positions = torch.arange(start, start + KEY_TILE, device=k_cache.device)
    page_index = key_positions // page_tokens
    pages = tiles.pages[:, page_index.clamp(max=tiles.pages.shape[1] - 1)]
    written = (pages >= 0) & (page_index < tiles.pages.shape[1]) & (key_positions <= tiles.last_positions.unsqueeze(1))
    slots = pages.clamp(min=0) * page_tokens + key_positions % page_tokens
    unwritten = ~written[:, :, None, None]
    # Slots that hold nothing may hold NaN, and 0 * NaN is NaN: they are cleared, not only masked.
    keys = k_cache.flatten(0, 1)[slots].float().masked_fill(unwritten, 0.0)
    values = v_cache.flatten(0, 1)[slots].float().masked_fill(unwritten, 0.0)
    return keys.permute(0, 2, 3, 1).contiguous(), values.transpose(1, 2).contiguous(), key_positions
