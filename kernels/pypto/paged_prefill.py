"""Attention of many rows of a sequence over the paged cache: prompts, chunks of them behind a context, and batches mixed with decode.

    attend   some rows of a sequence against a key tile: scores, their softmax within the tile, its values weighted by it
    merge    the key tiles of some rows, in order; of one key tile there is nothing to merge

Key tiles, roundings and sums are those of paged_decode. The heads of a kv head are rows of one product. Between the two kernels each of
them has a part for each key tile: the weighted values, and beside them their maximum and denominator.
"""

import pypto
import torch
from torch import Tensor

from kernels.pypto.key_tile import MEMORY, all_key_positions, find_pages, mask, read, score, weigh
from kernels.pypto.tiles import prefill_merge_tiles, prefill_tiles
from kernels.scratch import MAX_PREFILL_BYTES, PAGES_PER_KEY_TILE, PREFILL_STATISTICS, key_tiles, rows_per_launch

_DENOMINATOR = PREFILL_STATISTICS // 2  # its column behind the weighted values; the maximum is in the first one


@pypto.frontend.jit(runtime_options=MEMORY, pass_options={"cube_l1_reuse_setting": {-1: 8}, "cube_nbuffer_setting": {-1: 8}})
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
    parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    group: int,
    page_tokens: int,
    scale: float,
    window: int,
    one_tile: bool,
    query_tile: int,
    cube_rows: int,
    vector_rows: int,
    merged_tasks: int,
):
    pypto.set_pass_options(vec_nbuffer_setting={-1: merged_tasks})
    num_rows = positions.shape[0]
    head_dim = queries.shape[1]
    kv_heads = k_cache.shape[1] // head_dim
    rows = query_tile * group
    key_tile = page_tokens * PAGES_PER_KEY_TILE
    for sequence in pypto.loop(page_table.shape[0], name="SEQUENCES", idx_name="sequence"):
        begin = read(query_starts, sequence)
        end = read(query_ends, sequence)
        for index in pypto.loop((end - begin + query_tile - 1) // query_tile, name="QUERY_TILES", idx_name="index"):
            start_row, count, lowest, last, first = _query_tile(positions, begin, end, index, query_tile, window)
            valid = count * group
            # The last key tile first: its tasks, which mask, take longest.
            for back in pypto.loop(last // key_tile - first // key_tile + 1, name="KEY_TILES", idx_name="back"):
                tile = last // key_tile - back
                start = tile * key_tile
                found = find_pages(page_table, sequence, tile, first, last, page_tokens)
                for head in pypto.loop(kv_heads, name="KV_HEADS", idx_name="head"):
                    head_row = (head * num_rows + start_row) * group
                    query = pypto.view(queries, [rows, head_dim], [head_row, 0], valid_shape=[valid, head_dim])
                    pypto.set_cube_tile_shapes([cube_rows, cube_rows], [head_dim, head_dim], [page_tokens, page_tokens])
                    scores = score(query, k_cache, found, head * head_dim, page_tokens)
                    pypto.set_vec_tile_shapes(vector_rows, key_tile)
                    seen = _valid(scores, valid) * scale
                    if pypto.max(start + key_tile - lowest - 1, last - window + 1 - start if window else 0) > 0:
                        row_positions = pypto.view(head_positions, [rows, 1], [start_row * group, 0], valid_shape=[valid, 1])
                        seen = mask(seen, row_positions - pypto.view(key_positions, [1, key_tile], [0, start]), window)
                    tile_max = pypto.amax(seen, -1, True)
                    probabilities = pypto.exp(seen - tile_max)
                    denominator = pypto.sum(probabilities, -1, True)
                    # Loads of more keys than a page has: PyPTO gathers the pages first, and products read them, and the shares, in one go.
                    pypto.set_cube_tile_shapes([cube_rows, cube_rows], [page_tokens, key_tile], [head_dim, head_dim])
                    shares = pypto.cast(probabilities, pypto.DT_BF16)
                    weighted = weigh(shares, v_cache, found, head * head_dim, head_dim, valid, pypto.min(key_tile, last + 1 - start))
                    place = ((tile * kv_heads + head) * num_rows + start_row) * group
                    if one_tile:
                        pypto.set_vec_tile_shapes(vector_rows, head_dim)
                        weighted = weighted / denominator
                    else:
                        pypto.assemble(tile_max, [place, head_dim], parts)
                        pypto.assemble(denominator, [place, head_dim + _DENOMINATOR], parts)
                    pypto.assemble(weighted, [place, 0], parts)


@pypto.frontend.jit(runtime_options=MEMORY)
def prefill_merge_kernel(
    query_starts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    query_ends: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    head_dim: int,
    key_tile: int,
    window: int,
    query_tile: int,
    vector_rows: int,
):
    num_rows = positions.shape[0]
    width = head_dim + PREFILL_STATISTICS
    group = parts.shape[1] // width
    heads = out.shape[1] // head_dim
    for sequence in pypto.loop(query_starts.shape[0], name="SEQUENCES", idx_name="sequence"):
        begin = read(query_starts, sequence)
        end = read(query_ends, sequence)
        for index in pypto.loop((end - begin + query_tile - 1) // query_tile, name="QUERY_TILES", idx_name="index"):
            start_row, count, _, last, first = _query_tile(positions, begin, end, index, query_tile, window)
            for head in pypto.loop(heads, name="HEADS", idx_name="head"):
                pypto.set_vec_tile_shapes(vector_rows, head_dim)
                running_max = pypto.tensor([query_tile, 1], pypto.DT_FP32, "running_max")
                denominator = pypto.tensor([query_tile, 1], pypto.DT_FP32, "denominator")
                accumulator = pypto.tensor([query_tile, head_dim], pypto.DT_FP32, "accumulator")
                # Unrolled loops that begin at another number than 0 go wrong in PyPTO 0.2.0.
                num_tiles = last // key_tile - first // key_tile + 1
                for tile in pypto.loop(num_tiles, name="KEY_TILES", idx_name="tile", unroll_list=[4, 2, 1]):
                    place = ((first // key_tile + tile) * (heads // group) + head // group) * num_rows + start_row
                    part = pypto.view(parts, [query_tile, width], [place, head % group * width], valid_shape=[count, width])
                    pypto.set_vec_tile_shapes(vector_rows, width)
                    part = part * 1.0  # one load, of which what follows are views
                    pypto.set_vec_tile_shapes(vector_rows, head_dim)
                    tile_sum = pypto.view(part, [query_tile, head_dim], [0, 0], valid_shape=[count, head_dim])
                    tile_max = pypto.view(part, [query_tile, 1], [0, head_dim], valid_shape=[count, 1])
                    tile_denominator = pypto.view(part, [query_tile, 1], [0, head_dim + _DENOMINATOR], valid_shape=[count, 1])
                    if pypto.is_loop_begin(tile):
                        running_max[:] = pypto.clone(tile_max)
                        denominator[:] = pypto.clone(tile_denominator)
                        accumulator[:] = pypto.clone(tile_sum)
                    else:
                        before = _valid(running_max, count)
                        new_max = pypto.where(pypto.ge(before, tile_max), before, tile_max)
                        rescale = pypto.exp(before - new_max)
                        tile_rescale = pypto.exp(tile_max - new_max)
                        denominator[:] = _valid(denominator, count) * rescale + tile_denominator * tile_rescale
                        accumulator[:] = _valid(accumulator, count) * rescale + tile_sum * tile_rescale
                        running_max[:] = new_max
                    if pypto.is_loop_end(tile):
                        result = pypto.cast(_valid(accumulator, count) / _valid(denominator, count), pypto.DT_BF16)
                        pypto.assemble(result, [start_row, head * head_dim], out)


def _query_tile(positions, begin, end, index, query_tile, window):
    """Of a query tile of rows begin .. end - 1: its first row and how many it has, the positions of first and last, the first key seen."""
    start_row = begin + index * query_tile
    count = pypto.min(query_tile, end - start_row)
    lowest = read(positions, start_row)
    last = read(positions, start_row + count - 1)
    return start_row, count, lowest, last, pypto.max(0, lowest - window + 1) if window else 0


def _valid(x, rows):
    """PyPTO forgets across products and turns of a loop how many rows are valid."""
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
    block = rows_per_launch(num_rows, page_table.shape[1], heads, head_dim, max_bytes, PREFILL_STATISTICS)
    out = torch.zeros_like(q)
    for begin in range(0, num_rows, block):
        end = min(begin + block, num_rows)
        starts, ends = ((at - begin).clamp(0, end - begin) for at in (query_starts, query_ends))
        rows = starts, ends, positions[begin:end]
        parts = _attend(q[begin:end], k_cache, v_cache, page_table, *rows, scale, window)
        _merge(parts, *rows, k_cache.shape[1] * PAGES_PER_KEY_TILE, window, out[begin:end])
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
) -> Tensor:
    """Parts [key tiles, kv heads, rows, group, columns]: results already, without statistics, where there is one key tile."""
    num_rows, heads, head_dim = q.shape
    page_tokens, kv_heads = k_cache.shape[1:3]
    group, key_tile, tiles = heads // kv_heads, page_tokens * PAGES_PER_KEY_TILE, key_tiles(page_table.shape[1])
    shape = tiles, kv_heads, num_rows, group, head_dim + PREFILL_STATISTICS * (tiles > 1)
    parts = (q.new_empty if tiles > 1 else q.new_zeros)(shape, dtype=torch.float32)
    prefill_attend_kernel(
        q.view(num_rows, kv_heads, group, head_dim).transpose(0, 1).reshape(-1, head_dim),
        k_cache.view(-1, kv_heads * head_dim),
        v_cache.view(-1, kv_heads * head_dim),
        page_table,
        query_starts,
        query_ends,
        positions,
        positions.float().repeat_interleave(group).unsqueeze(1),
        all_key_positions(tiles * key_tile, q.device),
        parts.view(-1, shape[-1]),
        group,
        page_tokens,
        scale,
        window,
        tiles == 1,
        *prefill_tiles(num_rows, group, key_tile, tiles == 1),
    )
    return parts


def _merge(parts: Tensor, query_starts: Tensor, query_ends: Tensor, positions: Tensor, key_tile: int, window: int, out: Tensor) -> None:
    """Write the rows of `out` [rows, heads, D] of their parts."""
    num_rows, heads, head_dim = out.shape
    tiles, kv_heads, _, group, width = parts.shape
    if tiles == 1:
        out.view(num_rows, kv_heads, group, head_dim).copy_(parts[0].transpose(0, 1))
        return
    prefill_merge_kernel(
        query_starts,
        query_ends,
        positions,
        parts.view(-1, group * width),
        out.view(num_rows, heads * head_dim),
        head_dim,
        key_tile,
        window,
        *prefill_merge_tiles(num_rows, heads, width),
    )
