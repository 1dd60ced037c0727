"""Causal attention over the paged cache, for decode, prefill and mixed batches alike."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import attention_tiles

_MASKED = -1e30  # finite: a row whose keys are all masked so far must not make NaN of inf - inf


@pypto.frontend.jit()
def paged_attention_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    page_table: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC], pypto.DT_INT32),
    query_starts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    row_positions: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    key_positions: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_FP32),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    scale: float,
    query_tile: int,
    key_tile: int,
):
    heads = q.shape[1]
    width = q.shape[2]
    num_pages = k_cache.shape[0]
    page_tokens = k_cache.shape[1]
    kv_heads = k_cache.shape[2]
    group = heads // kv_heads
    rows = query_tile * group
    pages_per_tile = key_tile // page_tokens
    keys = pypto.reshape(k_cache, [num_pages * page_tokens, kv_heads * width], inplace=True)
    values = pypto.reshape(v_cache, [num_pages * page_tokens, kv_heads * width], inplace=True)
    for sequence in pypto.loop(page_table.shape[0], name="SEQUENCES", idx_name="sequence"):
        begin = query_starts[sequence]
        begin.as_variable()
        end = query_starts[sequence + 1]
        end.as_variable()
        for tile in pypto.loop((end - begin + query_tile - 1) // query_tile, name="QUERY_TILES", idx_name="tile"):
            first = begin + tile * query_tile
            count = pypto.min(query_tile, end - first)
            valid = count * group
            first_position = positions[first]
            first_position.as_variable()
            last_position = positions[first + count - 1]
            last_position.as_variable()
            for head in pypto.loop(kv_heads, name="KV_HEADS", idx_name="head"):
                pypto.set_vec_tile_shapes(query_tile, group, width)
                query = pypto.reshape(
                    pypto.view(q, [query_tile, group, width], [first, head * group, 0], valid_shape=[count, group, width]),
                    [rows, width],
                    valid_shape=[valid, width],
                )
                highest = pypto.tensor([rows, 1], pypto.DT_FP32, "highest")
                weight = pypto.tensor([rows, 1], pypto.DT_FP32, "weight")
                total = pypto.tensor([rows, width], pypto.DT_FP32, "total")
                for key_index in pypto.loop((last_position + key_tile) // key_tile, name="KEY_TILES", idx_name="key_index"):
                    start = key_index * key_tile
                    seen = pypto.min(key_tile, last_position + 1 - start)
                    page = page_table[sequence, pypto.min(key_index, page_table.shape[1] - 1)].max(0)
                    page.as_variable()
                    key_part = pypto.view(keys, [page_tokens, width], [page * page_tokens, head * width])
                    value_part = pypto.view(values, [page_tokens, width], [page * page_tokens, head * width], valid_shape=[seen, width])
                    part_of_q = pypto.view(query, [rows, width], [0, 0], valid_shape=[valid, width])
                    pypto.set_cube_tile_shapes([max(rows, 16), max(rows, 16)], [width, width], [128, 128])
                    scores = pypto.matmul(part_of_q, key_part, pypto.DT_FP32, b_trans=True)
                    pypto.set_vec_tile_shapes(rows, key_tile)
                    scores = scores * scale
                    if start + key_tile > first_position + 1:
                        query_positions = pypto.view(row_positions, [rows, 1], [first * group, 0], valid_shape=[valid, 1])
                        relative = query_positions - pypto.view(key_positions, [1, key_tile], [0, start])
                        scores = pypto.where(pypto.ge(relative, 0.0), scores, _MASKED)
                    top = pypto.amax(scores, -1, True)
                    if pypto.is_loop_begin(key_index):
                        probabilities = pypto.exp(scores - top)
                        pypto.set_cube_tile_shapes([max(rows, 16), max(rows, 16)], [128, 128], [width, width])
                        weighted = pypto.view(pypto.cast(probabilities, pypto.DT_BF16), [rows, key_tile], [0, 0], valid_shape=[valid, seen])
                        product = pypto.matmul(weighted, value_part, pypto.DT_FP32)
                        highest[:] = top
                        weight[:] = pypto.sum(probabilities, -1, True)
                        total[:] = product
                    else:
                        before = pypto.view(highest, [rows, 1], [0, 0], valid_shape=[valid, 1])
                        now = pypto.maximum(before, top)
                        fade = pypto.exp(before - now)
                        probabilities = pypto.exp(scores - now)
                        pypto.set_cube_tile_shapes([max(rows, 16), max(rows, 16)], [128, 128], [width, width])
                        weighted = pypto.view(pypto.cast(probabilities, pypto.DT_BF16), [rows, key_tile], [0, 0], valid_shape=[valid, seen])
                        product = pypto.matmul(weighted, value_part, pypto.DT_FP32)
                        weight[:] = pypto.view(weight, [rows, 1], [0, 0], valid_shape=[valid, 1]) * fade + pypto.sum(probabilities, -1, True)
                        total[:] = pypto.view(total, [rows, width], [0, 0], valid_shape=[valid, width]) * fade + product
                        highest[:] = now
                    if pypto.is_loop_end(key_index):
                        pypto.set_vec_tile_shapes(rows, width)
                        result = pypto.view(total, [rows, width], [0, 0], valid_shape=[valid, width]) / pypto.view(weight, [rows, 1], [0, 0], valid_shape=[valid, 1])
                        rounded = pypto.cast(result, pypto.DT_BF16)
                        pypto.set_vec_tile_shapes(query_tile, group, width)
                        pypto.assemble(
                            pypto.reshape(rounded, [query_tile, group, width], valid_shape=[count, group, width]), [first, head * group, 0], out
                        )


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, query_starts: Tensor, positions: Tensor, scale: float, window: int = 0
) -> Tensor:
    """See kernels.ops.paged_attention."""
    out = torch.zeros_like(q)
    tiles = attention_tiles(q.shape[0], page_table.shape[0], q.shape[1] // k_cache.shape[2], k_cache.shape[1])
    at = positions.to(torch.int32)
    by_head = at.float().repeat_interleave(q.shape[1] // k_cache.shape[2]).unsqueeze(1)
    capacity = -(-page_table.shape[1] * k_cache.shape[1] // tiles[1]) * tiles[1]
    key_positions = torch.arange(capacity, dtype=torch.float32, device=q.device).unsqueeze(0)
    paged_attention_kernel(q, k_cache, v_cache, page_table, query_starts, at, by_head, key_positions, out, scale, *tiles)
    return out
