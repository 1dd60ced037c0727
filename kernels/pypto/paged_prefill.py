"""Attention of many rows of a sequence over the paged cache: prompts, chunks of them behind a context, and batches mixed with decode.

Key tiles, roundings and sums are those of paged_decode.
"""

import pypto
import torch
from torch import Tensor

from kernels.pypto.key_tile import MEMORY, add_in_order, find_pages, mask, read, score, weigh
from kernels.pypto.tiles import PAGES_PER_KEY_TILE, prefill_tiles


@pypto.frontend.jit(runtime_options=MEMORY, pass_options={"cube_nbuffer_setting": {-1: 4}, "vec_nbuffer_setting": {-1: 4}})
def paged_prefill_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    page_table: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC], pypto.DT_INT32),
    query_starts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    head_positions: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    key_positions: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_FP32),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    page_tokens: int,
    scale: float,
    window: int,
    query_tile: int,
    vector_rows: int,
):
    heads = q.shape[1]
    head_dim = q.shape[2]
    kv_heads = k_cache.shape[1] // head_dim
    group = heads // kv_heads
    rows = query_tile * group
    cube_rows = max(16, rows)
    key_tile = page_tokens * PAGES_PER_KEY_TILE
    for sequence in pypto.loop(page_table.shape[0], name="SEQUENCES", idx_name="sequence"):
        begin = read(query_starts, sequence)
        end = read(query_starts, sequence + 1)
        for index in pypto.loop((end - begin + query_tile - 1) // query_tile, name="QUERY_TILES", idx_name="index"):
            start_row = begin + index * query_tile
            count = pypto.min(query_tile, end - start_row)
            valid = count * group
            lowest = read(positions, start_row)
            last = read(positions, start_row + count - 1)
            first = pypto.max(0, lowest - window + 1) if window else 0
            for head in pypto.loop(kv_heads, name="KV_HEADS", idx_name="head"):
                running_max = pypto.tensor([rows, 1], pypto.DT_FP32, "running_max")
                denominator = pypto.tensor([rows, 1], pypto.DT_FP32, "denominator")
                accumulator = pypto.tensor([rows, head_dim], pypto.DT_FP32, "accumulator")
                for tile in pypto.loop(first // key_tile, (last + key_tile) // key_tile, 1, name="KEY_TILES", idx_name="tile"):
                    start = tile * key_tile
                    found = find_pages(page_table, sequence, tile, first, last, page_tokens)
                    pypto.set_vec_tile_shapes(query_tile, group, head_dim)
                    query = _query(q, [query_tile, group, head_dim], [start_row, head * group, 0], count)
                    pypto.set_cube_tile_shapes([cube_rows, cube_rows], [head_dim, head_dim], [page_tokens, page_tokens])
                    scores = score(query, k_cache, found, head * head_dim, page_tokens)
                    pypto.set_vec_tile_shapes(vector_rows, key_tile)
                    seen = pypto.view(scores, [rows, key_tile], [0, 0], valid_shape=[valid, key_tile]) * scale
                    if pypto.max(start + key_tile - lowest - 1, last - window + 1 - start if window else 0) > 0:
                        row_positions = pypto.view(head_positions, [rows, 1], [start_row * group, 0], valid_shape=[valid, 1])
                        seen = mask(seen, row_positions - pypto.view(key_positions, [1, key_tile], [0, start]), window)
                    tile_max = pypto.amax(seen, -1, True)
                    probabilities = pypto.exp(seen - tile_max)
                    tile_denominator = pypto.sum(probabilities, -1, True)
                    pypto.set_cube_tile_shapes([cube_rows, cube_rows], [page_tokens, page_tokens], [head_dim, head_dim])
                    pages = weigh(pypto.cast(probabilities, pypto.DT_BF16), v_cache, found, head * head_dim, head_dim, valid)
                    pypto.set_vec_tile_shapes(vector_rows, head_dim)
                    tile_sum = add_in_order(pages)
                    if pypto.is_loop_begin(tile):
                        running_max[:] = pypto.clone(tile_max)
                        denominator[:] = pypto.clone(tile_denominator)
                        accumulator[:] = pypto.clone(tile_sum)
                    else:
                        before = _valid(running_max, valid)
                        new_max = pypto.maximum(before, tile_max)
                        rescale = pypto.exp(before - new_max)
                        tile_rescale = pypto.exp(tile_max - new_max)
                        denominator[:] = _valid(denominator, valid) * rescale + tile_denominator * tile_rescale
                        accumulator[:] = _valid(accumulator, valid) * rescale + tile_sum * tile_rescale
                        running_max[:] = new_max
                    if pypto.is_loop_end(tile):
                        result = pypto.cast(_valid(accumulator, valid) / _valid(denominator, valid), pypto.DT_BF16)
                        pypto.set_vec_tile_shapes(query_tile, group, head_dim)
                        by_head = pypto.reshape(result, [query_tile, group, head_dim], valid_shape=[count, group, head_dim])
                        pypto.assemble(by_head, [start_row, head * group, 0], out)


def _query(q, shape, offsets, count):
    """The heads of a kv head of some rows, as rows of one product: [rows * group, head_dim]."""
    query_tile, group, head_dim = shape
    by_head = pypto.view(q, shape, offsets, valid_shape=[count, group, head_dim])
    rows = pypto.reshape(by_head, [query_tile * group, head_dim], valid_shape=[count * group, head_dim])
    return _valid(rows, count * group)


def _valid(x, rows):
    """PyPTO forgets across turns of a loop, and in a reshape, how many rows are valid."""
    return pypto.view(x, list(x.shape), [0, 0], valid_shape=[rows, x.shape[1]])


def paged_prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, query_starts: Tensor, positions: Tensor, scale: float, window: int
) -> Tensor:
    """As paged_attention, positions [T] int32 rising within a sequence."""
    page_tokens, kv_heads = k_cache.shape[1:3]
    group, width = q.shape[1] // kv_heads, kv_heads * q.shape[2]
    key_tile = page_tokens * PAGES_PER_KEY_TILE
    capacity = -(-page_table.shape[1] * page_tokens // key_tile) * key_tile
    out = torch.zeros_like(q)
    paged_prefill_kernel(
        q,
        k_cache.view(-1, width),
        v_cache.view(-1, width),
        page_table,
        query_starts,
        positions,
        positions.float().repeat_interleave(group).unsqueeze(1),
        torch.arange(capacity, dtype=torch.float32, device=q.device).unsqueeze(0),
        out,
        page_tokens,
        scale,
        window,
        *prefill_tiles(group),
    )
    return out
