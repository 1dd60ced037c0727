"""Attention of many rows of a sequence over the paged cache: prompts, chunks of them behind a context, and batches mixed with decode.

    attend   some rows of a sequence against a key tile: scores, their softmax within the tile, its values weighted by it
    merge    the key tiles of some rows, in order; of one key tile there is nothing to merge

Key tiles, roundings and sums are those of paged_decode. The heads of a kv head are rows of one product.
"""

import pypto
import torch
from torch import Tensor

from kernels.pypto.key_tile import MEMORY, all_key_positions, find_pages, mask, read, score, weigh
from kernels.pypto.tiles import prefill_tiles
from kernels.scratch import MAX_PREFILL_BYTES, PAGES_PER_KEY_TILE, key_tiles, rows_per_launch


@pypto.frontend.jit(
    runtime_options=MEMORY,
    pass_options={"cube_l1_reuse_setting": {-1: 8}, "cube_nbuffer_setting": {-1: 8}, "vec_nbuffer_setting": {-1: 4}},
)
def prefill_attend_kernel(
    queries: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    page_table: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC], pypto.DT_INT32),
    query_starts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    query_ends: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    head_positions: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    key_positions: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_FP32),
    tile_maxima: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    tile_denominators: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    group: int,
    page_tokens: int,
    scale: float,
    window: int,
    query_tile: int,
    cube_rows: int,
    vector_rows: int,
    one_tile: bool,
):
    num_rows = positions.shape[0]
    head_dim = queries.shape[1]
    kv_heads = k_cache.shape[1] // head_dim
    rows = query_tile * group
    key_tile = page_tokens * PAGES_PER_KEY_TILE
    for sequence in pypto.loop(page_table.shape[0], name="SEQUENCES", idx_name="sequence"):
        begin = read(query_starts, sequence)
        end = read(query_ends, sequence)
        for index in pypto.loop((end - begin + query_tile - 1) // query_tile, name="QUERY_TILES", idx_name="index"):
            start_row = begin + index * query_tile
            count = pypto.min(query_tile, end - start_row)
            valid = count * group
            lowest = read(positions, start_row)
            last = read(positions, start_row + count - 1)
            first = pypto.max(0, lowest - window + 1) if window else 0
            for tile in pypto.loop(first // key_tile, (last + key_tile) // key_tile, 1, name="KEY_TILES", idx_name="tile"):
                start = tile * key_tile
                found = find_pages(page_table, sequence, tile, first, last, page_tokens)
                for head in pypto.loop(kv_heads, name="KV_HEADS", idx_name="head"):
                    head_row = (head * num_rows + start_row) * group
                    query = pypto.view(queries, [rows, head_dim], [head_row, 0], valid_shape=[valid, head_dim])
                    pypto.set_cube_tile_shapes([cube_rows, cube_rows], [head_dim, head_dim], [page_tokens, page_tokens])
                    scores = score(query, k_cache, found, head * head_dim, page_tokens)
                    pypto.set_vec_tile_shapes(vector_rows, key_tile)
                    seen = pypto.view(scores, [rows, key_tile], [0, 0], valid_shape=[valid, key_tile]) * scale
                    if pypto.max(start + key_tile - lowest - 1, last - window + 1 - start if window else 0) > 0:
                        row_positions = pypto.view(head_positions, [rows, 1], [start_row * group, 0], valid_shape=[valid, 1])
                        seen = mask(seen, row_positions - pypto.view(key_positions, [1, key_tile], [0, start]), window)
                    tile_max = pypto.amax(seen, -1, True)
                    probabilities = pypto.exp(seen - tile_max)
                    place = ((tile * kv_heads + head) * num_rows + start_row) * group
                    denominator = pypto.sum(probabilities, -1, True)
                    # Loads of more keys than a page has: PyPTO gathers the pages first, and products read them, and the shares, in one go.
                    pypto.set_cube_tile_shapes([cube_rows, cube_rows], [page_tokens, key_tile], [head_dim, head_dim])
                    shares = pypto.cast(probabilities, pypto.DT_BF16)
                    weighted = weigh(shares, v_cache, found, head * head_dim, head_dim, valid, pypto.min(key_tile, last + 1 - start))
                    if one_tile:
                        pypto.set_vec_tile_shapes(vector_rows, head_dim)
                        weighted = weighted / denominator
                    else:
                        pypto.assemble(tile_max, [place, 0], tile_maxima)
                        pypto.assemble(denominator, [place, 0], tile_denominators)
                    pypto.assemble(weighted, [place, 0], parts)


@pypto.frontend.jit(runtime_options=MEMORY, pass_options={"vec_nbuffer_setting": {-1: 2}})
def prefill_merge_kernel(
    query_starts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    query_ends: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    tile_maxima: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    tile_denominators: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    head_dim: int,
    key_tile: int,
    window: int,
    query_tile: int,
    vector_rows: int,
):
    num_rows = positions.shape[0]
    group = tile_maxima.shape[1]
    heads = out.shape[1] // head_dim
    kv_heads = heads // group
    for sequence in pypto.loop(query_starts.shape[0], name="SEQUENCES", idx_name="sequence"):
        begin = read(query_starts, sequence)
        end = read(query_ends, sequence)
        for index in pypto.loop((end - begin + query_tile - 1) // query_tile, name="QUERY_TILES", idx_name="index"):
            start_row = begin + index * query_tile
            count = pypto.min(query_tile, end - start_row)
            lowest = read(positions, start_row)
            last = read(positions, start_row + count - 1)
            first_tile = pypto.max(0, lowest - window + 1) // key_tile if window else 0
            for head in pypto.loop(heads, name="HEADS", idx_name="head"):
                pypto.set_vec_tile_shapes(vector_rows, head_dim)
                running_max = pypto.tensor([query_tile, 1], pypto.DT_FP32, "running_max")
                denominator = pypto.tensor([query_tile, 1], pypto.DT_FP32, "denominator")
                accumulator = pypto.tensor([query_tile, head_dim], pypto.DT_FP32, "accumulator")
                # Unrolled loops that begin at another number than 0 go wrong in PyPTO 0.2.0.
                num_tiles = (last + key_tile) // key_tile - first_tile
                for tile in pypto.loop(num_tiles, name="KEY_TILES", idx_name="tile", unroll_list=[4, 2, 1]):
                    place = ((first_tile + tile) * kv_heads + head // group) * num_rows + start_row
                    member = head % group
                    tile_max = pypto.view(tile_maxima, [query_tile, 1], [place, member], valid_shape=[count, 1])
                    tile_denominator = pypto.view(tile_denominators, [query_tile, 1], [place, member], valid_shape=[count, 1])
                    tile_sum = pypto.view(parts, [query_tile, head_dim], [place, member * head_dim], valid_shape=[count, head_dim])
                    if pypto.is_loop_begin(tile):
                        running_max[:] = pypto.clone(tile_max)
                        denominator[:] = pypto.clone(tile_denominator)
                        accumulator[:] = pypto.clone(tile_sum)
                    else:
                        before = _valid(running_max, count)
                        new_max = pypto.maximum(before, tile_max)
                        rescale = pypto.exp(before - new_max)
                        tile_rescale = pypto.exp(tile_max - new_max)
                        denominator[:] = _valid(denominator, count) * rescale + tile_denominator * tile_rescale
                        accumulator[:] = _valid(accumulator, count) * rescale + tile_sum * tile_rescale
                        running_max[:] = new_max
                    if pypto.is_loop_end(tile):
                        result = pypto.cast(_valid(accumulator, count) / _valid(denominator, count), pypto.DT_BF16)
                        pypto.assemble(result, [start_row, head * head_dim], out)


def _valid(x, rows):
    """PyPTO forgets across turns of a loop how many rows are valid."""
    return pypto.view(x, list(x.shape), [0, 0], valid_shape=[rows, x.shape[1]])


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    query_starts: Tensor,
    query_ends: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    max_bytes: int = MAX_PREFILL_BYTES,
) -> Tensor:
    """As paged_attention, of the rows query_starts[b] .. query_ends[b] - 1 of each sequence b; those of no sequence come out zero."""
    num_rows, heads, head_dim = q.shape
    block = rows_per_launch(num_rows, page_table.shape[1], heads, head_dim, max_bytes)
    out = torch.zeros_like(q)
    for begin in range(0, num_rows, block):
        end = min(begin + block, num_rows)
        starts, ends = ((at - begin).clamp(0, end - begin) for at in (query_starts, query_ends))
        _attend(q[begin:end], k_cache, v_cache, page_table, starts, ends, positions[begin:end], scale, window, out[begin:end])
    return out


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    query_starts: Tensor,
    query_ends: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    out: Tensor,
) -> None:
    """Of as many rows as there is room for."""
    num_rows, heads, head_dim = q.shape
    page_tokens, kv_heads = k_cache.shape[1:3]
    group, width, key_tile = heads // kv_heads, kv_heads * head_dim, page_tokens * PAGES_PER_KEY_TILE
    tiles = key_tiles(page_table.shape[1])
    query_tile, cube_rows, softmax_rows, merge_rows = prefill_tiles(num_rows, group, head_dim)
    tile_maxima = q.new_empty(tiles * kv_heads * num_rows * group, 1, dtype=torch.float32)
    tile_denominators = torch.empty_like(tile_maxima)
    one_tile = tiles == 1
    parts = (tile_maxima.new_zeros if one_tile else tile_maxima.new_empty)(tiles * kv_heads * num_rows * group, head_dim)
    prefill_attend_kernel(
        q.view(num_rows, kv_heads, group, head_dim).transpose(0, 1).reshape(-1, head_dim),
        k_cache.view(-1, width),
        v_cache.view(-1, width),
        page_table,
        query_starts,
        query_ends,
        positions,
        positions.float().repeat_interleave(group).unsqueeze(1),
        all_key_positions(tiles * key_tile, q.device),
        tile_maxima,
        tile_denominators,
        parts,
        group,
        page_tokens,
        scale,
        window,
        query_tile,
        cube_rows,
        softmax_rows,
        one_tile,
    )
    if one_tile:
        out.view(num_rows, kv_heads, group, head_dim).copy_(parts.view(kv_heads, num_rows, group, head_dim).transpose(0, 1))
        return
    prefill_merge_kernel(
        query_starts,
        query_ends,
        positions,
        tile_maxima.view(-1, group),
        tile_denominators.view(-1, group),
        parts.view(-1, group * head_dim),
        out.view(num_rows, heads * head_dim),
        head_dim,
        key_tile,
        window,
        query_tile,
        merge_rows,
    )
