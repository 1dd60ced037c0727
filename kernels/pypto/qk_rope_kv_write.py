"""From the query, key and value projections to rotated queries and a cache that holds the rows: what attention needs, in one pass."""

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import qk_rope_tiles


@pypto.frontend.jit()
def qk_rope_kv_write_kernel(
    qkv: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    q_norm: pypto.Tensor([...], pypto.DT_FP32),
    k_norm: pypto.Tensor([...], pypto.DT_FP32),
    positions: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    slots: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    cos: pypto.Tensor([...], pypto.DT_FP32),
    sin: pypto.Tensor([...], pypto.DT_FP32),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    query: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    eps: float,
    normed: bool,
    tile: int,
    task_rows: int,
):
    rows = query.shape[0]
    heads = query.shape[1]
    width = query.shape[2]
    half = width // 2
    kv_heads = (qkv.shape[1] - heads) // 2
    for index in pypto.loop((rows + tile - 1) // tile, name="TILES", idx_name="index"):
        start = index * tile
        valid = pypto.min(tile, rows - start)
        at = pypto.view(positions, [tile], [start], valid_shape=[valid])
        angle_cos = _angle(cos, at, tile, half, valid)
        angle_sin = _angle(sin, at, tile, half, valid)
        pypto.set_vec_tile_shapes(task_rows, heads, half)
        low, high = _halves(qkv, q_norm, tile, heads, start, 0, valid, eps, normed)
        pypto.assemble(_rotated(low, high, angle_cos, angle_sin, -1.0), [start, 0, 0], query)
        pypto.assemble(_rotated(high, low, angle_cos, angle_sin, 1.0), [start, 0, half], query)
        pypto.set_vec_tile_shapes(task_rows, kv_heads, half)
        low, high = _halves(qkv, k_norm, tile, kv_heads, start, heads, valid, eps, normed)
        key = pypto.tensor([tile, kv_heads, width], pypto.DT_BF16, "key")
        pypto.assemble(_rotated(low, high, angle_cos, angle_sin, -1.0), [0, 0, 0], key)
        pypto.assemble(_rotated(high, low, angle_cos, angle_sin, 1.0), [0, 0, half], key)
        value = pypto.view(qkv, [tile, kv_heads, width], [start, heads + kv_heads, 0], valid_shape=[valid, kv_heads, width])
        pypto.set_vec_tile_shapes(task_rows, kv_heads, width)
        flat_key, flat_value = _flat(key, tile, kv_heads * width, valid), _flat(value, tile, kv_heads * width, valid)
        pypto.set_vec_tile_shapes(tile, kv_heads * width)
        slot = pypto.view(slots, [tile, 1], [start, 0], valid_shape=[valid, 1])
        k_cache[:] = pypto.scatter_update(k_cache, -2, slot, flat_key)
        v_cache[:] = pypto.scatter_update(v_cache, -2, slot, flat_value)


def _angle(table, at, tile, half, valid):
    pypto.set_vec_tile_shapes(tile, half)
    rows = _rounded(pypto.index_select(table, 0, at))
    pypto.set_vec_tile_shapes(tile, 1, half)
    return pypto.reshape(rows, [tile, 1, half], valid_shape=[valid, 1, half])


def _halves(qkv, weights, tile, heads, start, first, valid, eps, normed):
    """Both halves of some heads of some rows, in fp32 but rounded, after their norm by weights [1, heads, D] if there is one."""
    half = qkv.shape[2] // 2
    parts = [
        pypto.cast(pypto.view(qkv, [tile, heads, half], [start, first, half * part], valid_shape=[valid, heads, half]), pypto.DT_FP32)
        for part in range(2)
    ]
    if not normed:
        return parts
    squares = pypto.sum(parts[0] * parts[0], -1, True) + pypto.sum(parts[1] * parts[1], -1, True)
    root = pypto.sqrt(squares * (0.5 / half) + eps)
    scales = [pypto.view(weights, [1, heads, half], [0, 0, half * part]) for part in range(2)]
    return [_rounded(_rounded(part / root) * scale) for part, scale in zip(parts, scales, strict=True)]


def _rotated(straight, crossed, angle_cos, angle_sin, sign):
    return pypto.cast(_rounded(straight * angle_cos) + _rounded(crossed * angle_sin) * sign, pypto.DT_BF16)


def _rounded(x):
    return pypto.cast(pypto.cast(x, pypto.DT_BF16), pypto.DT_FP32)


def _flat(rows, tile, width, valid):
    return pypto.view(pypto.reshape(rows, [tile, width], valid_shape=[valid, width]), [tile, width], [0, 0], valid_shape=[valid, width])


def qk_rope_kv_write(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """qkv [T, Hq + 2 Hk, D] -> queries [T, Hq, D]; puts keys and values at slots [T] of the caches [pages, page_tokens, Hk, D].

    Does what kernels.ops.rms_norm of the heads by q_norm and k_norm (or neither), rotary and write_kv would do one by one. The weights come
    from lay_out_head_norms.
    """
    kv_heads, width = k_cache.shape[2:]
    query = qkv.new_empty(qkv.shape[0], qkv.shape[1] - 2 * kv_heads, width)
    qk_rope_kv_write_kernel(
        qkv,
        cos if q_norm is None else q_norm,
        cos if k_norm is None else k_norm,
        positions.to(torch.int32),
        slots.to(torch.int32).unsqueeze(1),
        cos,
        sin,
        k_cache.view(-1, kv_heads * width),
        v_cache.view(-1, kv_heads * width),
        query,
        eps,
        q_norm is not None and k_norm is not None,
        *qk_rope_tiles(query.shape[0], query.shape[1], width, kv_heads),
    )
    return query


def lay_out_head_norms(q_norm: Tensor, k_norm: Tensor, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor]:
    """Weights [D] once for each head, [1, heads, D] fp32: made in the kernel, they would tie all its rows into one task."""
    q_norms, k_norms = (norm.float().repeat(1, heads, 1) for norm, heads in ((q_norm, num_heads), (k_norm, num_kv_heads)))
    return q_norms, k_norms
