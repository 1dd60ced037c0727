"""Attention of single rows over the paged cache, every key tile of every row on its own.

    attend   scores of all heads against a key tile, their softmax within the tile, its values weighted by it
    merge    the key tiles of a row, in order

All heads go through one product: a row of queries is laid out as [heads, kv heads * D], zero but in the columns of its own kv head, so
that pages are read as they lie in memory. Adding zeros changes nothing, and a product has 16 rows at least anyhow. Of the weighted values
each head keeps the columns of its own kv head.
"""

import functools

import pypto
import torch
from torch import Tensor

from kernels.pypto.key_tile import MEMORY, all_key_positions, find_pages, mask, read, score, weigh
from kernels.pypto.tiles import decode_merged_tasks, decode_tiles
from kernels.scratch import MAX_DECODE_BYTES, PAGES_PER_KEY_TILE, key_tiles, rows_per_launch


@pypto.frontend.jit(runtime_options=MEMORY)
def decode_attend_kernel(
    queries: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    pages: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC], pypto.DT_INT32),
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    row_positions: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    key_positions: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_FP32),
    tile_maxima: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    tile_denominators: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    heads: int,
    page_tokens: int,
    scale: float,
    window: int,
    rows_tile: int,
    key_depth: int,
    key_load: int,
    columns_tile: int,
    depth_tile: int,
    vector_rows: int,
    merged_tasks: int,
):
    pypto.set_pass_options(cube_nbuffer_setting={-1: merged_tasks}, vec_nbuffer_setting={-1: merged_tasks})
    width = queries.shape[1]
    head_dim = parts.shape[1]
    group = heads // (width // head_dim)
    key_tile = page_tokens * PAGES_PER_KEY_TILE
    tiles = key_positions.shape[1] // key_tile
    for row in pypto.loop(positions.shape[0], name="ROWS", idx_name="row"):
        last = read(positions, row)
        first = pypto.max(0, last - window + 1) if window else 0
        for tile in pypto.loop(first // key_tile, (last + key_tile) // key_tile, 1, name="KEY_TILES", idx_name="tile"):
            start = tile * key_tile
            slot = row * tiles + tile
            found = find_pages(pages, row, tile, first, last, page_tokens)
            pypto.set_cube_tile_shapes([rows_tile, rows_tile], [key_depth, key_load], [page_tokens, page_tokens])
            scores = score(pypto.view(queries, [heads, width], [row * heads, 0]), k_cache, found, 0, page_tokens)
            pypto.set_vec_tile_shapes(vector_rows, key_tile)
            seen = scores * scale
            if pypto.max(start + key_tile - last - 1, first - start) > 0:
                row_position = pypto.cast(pypto.view(row_positions, [1, 1], [row, 0]), pypto.DT_FP32)
                seen = mask(seen, row_position - pypto.view(key_positions, [1, key_tile], [0, start]), window)
            tile_max = pypto.amax(seen, -1, True)
            probabilities = pypto.exp(seen - tile_max)
            pypto.assemble(tile_max, [slot * heads, 0], tile_maxima)
            pypto.assemble(pypto.sum(probabilities, -1, True), [slot * heads, 0], tile_denominators)
            pypto.set_cube_tile_shapes([rows_tile, rows_tile], [depth_tile, page_tokens], [columns_tile, columns_tile])
            seen_keys = pypto.min(key_tile, last + 1 - start)
            weighted = weigh(pypto.cast(probabilities, pypto.DT_BF16), v_cache, found, 0, width, heads, seen_keys)
            pypto.set_vec_tile_shapes(group, head_dim)
            for head in range(heads // group):
                own = pypto.view(weighted, [group, head_dim], [head * group, head * head_dim])
                pypto.assemble(pypto.clone(own), [slot * heads + head * group, 0], parts)


@pypto.frontend.jit(runtime_options=MEMORY)
def decode_merge_kernel(
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    tile_maxima: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    tile_denominators: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    heads: int,
    tiles: int,
    key_tile: int,
    window: int,
):
    head_dim = out.shape[1]
    for row in pypto.loop(positions.shape[0], name="ROWS", idx_name="row"):
        last = read(positions, row)
        first = pypto.max(0, last - window + 1) if window else 0
        pypto.set_vec_tile_shapes(heads, head_dim)
        if last < 0:
            pypto.assemble(pypto.cast(pypto.full([heads, head_dim], 0.0, pypto.DT_FP32), pypto.DT_BF16), [row * heads, 0], out)
        running_max = pypto.tensor([heads, 1], pypto.DT_FP32, "running_max")
        denominator = pypto.tensor([heads, 1], pypto.DT_FP32, "denominator")
        accumulator = pypto.tensor([heads, head_dim], pypto.DT_FP32, "accumulator")
        begin = first // key_tile
        # Unrolled loops that begin at another number than 0 go wrong in PyPTO 0.2.0.
        for index in pypto.loop((last + key_tile) // key_tile - begin, name="KEY_TILES", idx_name="index", unroll_list=[8, 4, 2, 1]):
            place = (row * tiles + begin + index) * heads
            tile_max = pypto.view(tile_maxima, [heads, 1], [place, 0])
            tile_denominator = pypto.view(tile_denominators, [heads, 1], [place, 0])
            tile_sum = pypto.view(parts, [heads, head_dim], [place, 0])
            if pypto.is_loop_begin(index):
                running_max[:] = pypto.clone(tile_max)
                denominator[:] = pypto.clone(tile_denominator)
                accumulator[:] = pypto.clone(tile_sum)
            else:
                new_max = pypto.maximum(running_max, tile_max)
                rescale = pypto.exp(running_max - new_max)
                tile_rescale = pypto.exp(tile_max - new_max)
                denominator[:] = denominator * rescale + tile_denominator * tile_rescale
                accumulator[:] = accumulator * rescale + tile_sum * tile_rescale
                running_max[:] = new_max
            if pypto.is_loop_end(index):
                pypto.assemble(pypto.cast(accumulator / denominator, pypto.DT_BF16), [row * heads, 0], out)


@functools.cache  # the same in all layers and steps
def _own_columns(kv_heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One where a head stands over its own kv head, else zero: [1, kv heads, 1, kv heads, 1]."""
    return torch.eye(kv_heads, dtype=dtype, device=device).view(1, kv_heads, 1, kv_heads, 1)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    max_bytes: int = MAX_DECODE_BYTES,
) -> Tensor:
    """As paged_attention, of rows [T] each with its own line of page_table [T, P]; rows at position -1 come out zero."""
    num_rows, heads, head_dim = q.shape
    page_tokens, kv_heads = k_cache.shape[1:3]
    group, width, key_tile = heads // kv_heads, kv_heads * head_dim, page_tokens * PAGES_PER_KEY_TILE
    tiles = key_tiles(page_table.shape[1])
    block = rows_per_launch(num_rows, page_table.shape[1], heads, head_dim, max_bytes)
    own = _own_columns(kv_heads, q.dtype, q.device)
    queries = (q.view(num_rows, kv_heads, group, 1, head_dim) * own).view(num_rows * heads, width)
    tile_maxima = q.new_empty(block * tiles * heads, 1, dtype=torch.float32)
    tile_denominators = torch.empty_like(tile_maxima)
    parts = tile_maxima.new_empty(block * tiles * heads, head_dim)
    out = torch.empty_like(q)
    for begin in range(0, num_rows, block):
        end = min(begin + block, num_rows)
        decode_attend_kernel(
            queries[begin * heads : end * heads],
            k_cache.view(-1, width),
            v_cache.view(-1, width),
            page_table[begin:end],
            positions[begin:end],
            positions[begin:end].unsqueeze(1),
            all_key_positions(tiles * key_tile, q.device),
            tile_maxima,
            tile_denominators,
            parts,
            heads,
            page_tokens,
            scale,
            window,
            *decode_tiles(heads, width, page_tokens),
            decode_merged_tasks(end - begin),
        )
        decode_merge_kernel(
            positions[begin:end],
            tile_maxima,
            tile_denominators,
            parts,
            out[begin:end].view(-1, head_dim),
            heads,
            tiles,
            key_tile,
            window,
        )
    return out
