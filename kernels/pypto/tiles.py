"""Which tiles the kernels use for which shapes; docs/kernels.md says what was tried.

Figures of an Ascend 910B: 24 cube and 48 vector cores; 192 KiB of unified buffer, 512 KiB of L1, 64 KiB of L0A and of L0B, 128 KiB of L0C.
A tile is compiled into a kernel: where one depends on the number of rows it is a power of two, so that few kernels are compiled.
How a row is summed must not depend on the number of rows: no depth does.
"""

import math
from typing import NamedTuple

_L1_ELEMENTS = 512 * 1024 // 2  # bf16
_CUBE_CORES = 24
_VECTOR_CORES = 48
_CUBE_TASKS = 22  # with a task for every core the last ones start late
_MAX_LOOP_ROWS = 128


class RowTiles(NamedTuple):
    """How an elementwise kernel cuts rows."""

    loop_rows: int  # rows of a turn of the loop
    task_rows: int  # rows of a task: turns are cut into these, and tasks go to the vector cores


class LinearTiles(NamedTuple):
    """How a matrix product is cut, in elements, multiples of 16."""

    rows: int
    columns: int  # outputs of a task
    depth: int  # inputs that are multiplied at a time
    x_depth: int  # inputs of a load of rows into L1
    weight_depth: int  # inputs of a load of weights into L1
    merged: int  # tasks that become one


def rows_per_tile(width: int) -> int:
    """Rows of `width` columns that an elementwise kernel takes at a time."""
    return max(1, min(8, 8192 // width))


def norm_tiles(rows: int, width: int) -> RowTiles:
    """For rms_norm."""
    return _row_tiles(rows, _power_of_two_below(16384 // width, 128))


def add_norm_tiles(rows: int, width: int) -> RowTiles:
    """For add_rms_norm, which holds twice as much at a time."""
    return _short_turns(rows, 2 if 2048 < width <= 6144 else _power_of_two_below(4096 // width, 64))


def swiglu_tiles(rows: int, width: int) -> tuple[int, int, int]:
    """For swiglu: the rows as above, and columns of a task, half of them where a core's memory holds those."""
    columns = min(_multiple(-(-width // 2), 16), 16384)
    elements = 16384 if rows <= 16 else 20480  # with few rows short tasks, on many cores
    return *_short_turns(rows, _power_of_two_below(elements // columns, 8)), columns


def linear_tiles(rows: int, out_features: int, in_features: int) -> LinearTiles:
    """For linear."""
    tile_rows = 16 if rows <= 16 else 32 if rows <= 32 else 128  # with 64 tasks that are merged do not fit L1, which is dear
    # Where a core has several tasks they become one, which loads its rows once.
    few = tile_rows < 128 and out_features <= 2 * 256 * _CUBE_TASKS
    turns = -(-out_features // (256 * (_CUBE_TASKS if few else _CUBE_CORES)))
    columns = _linear_columns(tile_rows, out_features, turns)
    depth = min(256 if out_features <= 2048 else 128, _multiple(in_features, 16))
    most = _most_weight_depth(tile_rows, columns, turns, in_features)
    weight_depth = min(most, _multiple(in_features, depth))
    loads = (_L1_ELEMENTS - columns * weight_depth) // (tile_rows * weight_depth)
    x_depth = min(loads * weight_depth, _multiple(in_features, weight_depth)) if loads else weight_depth // 2
    return LinearTiles(tile_rows, columns, depth, x_depth, weight_depth, turns)


def _linear_columns(tile_rows: int, out_features: int, turns: int) -> int:
    tasks = 16 if tile_rows == 128 and turns == 1 else turns * _CUBE_TASKS
    columns = _multiple(-(-out_features // tasks), 16 if tile_rows == 16 or turns > 1 else 64)
    shorter = turns == 1 and out_features <= 224 * _CUBE_CORES and (tile_rows < 128 or columns > 256)
    return min(columns, 224 if shorter else 256)  # 224 leave room for loads of 1024 inputs


def _most_weight_depth(tile_rows: int, columns: int, turns: int, in_features: int) -> int:
    """512 or 1024 inputs; a task that loads all its weights at once waits for them."""
    if turns > 2 or (turns == 2 and tile_rows > 16) or (turns == 1 and in_features <= 1024):
        return 512
    return 1024 if columns * 1024 + tile_rows * 512 <= _L1_ELEMENTS else 512


def _row_tiles(rows: int, task_rows: int) -> RowTiles:
    return RowTiles(_power_of_two_above(rows, task_rows, max(task_rows, _MAX_LOOP_ROWS)), task_rows)


def _short_turns(rows: int, task_rows: int) -> RowTiles:
    """Up to 64 rows a turn is one row of tasks: three tasks that nothing ties begin and end behind a task of PyPTO's own."""
    return RowTiles(task_rows, task_rows) if rows <= 64 else _row_tiles(rows, task_rows)


def _power_of_two_above(number: int, least: int, most: int) -> int:
    """`least` doubled until it is not below `number`, or is `most`."""
    while least < min(number, most):
        least *= 2
    return least


def _power_of_two_below(number: int, most: int) -> int:
    """The greatest power of two that is at most `number` and `most`; at least 1."""
    return 1 << (max(1, min(number, most)).bit_length() - 1)


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of


class PrefillTiles(NamedTuple):
    """How attention of many rows is cut."""

    query_tile: int  # rows of a sequence at a time
    cube_rows: int  # of their heads, those of a product
    softmax_rows: int  # of their heads, those of a softmax
    merged: int  # softmax tasks that become one


class MergeTiles(NamedTuple):
    """How the key tiles of many rows are merged."""

    query_tile: int  # rows of a sequence at a time
    vector_rows: int  # of these, rows of a task


def prefill_tiles(rows: int, group: int, key_tile: int, one_tile: bool) -> PrefillTiles:
    """For attention of many rows with `group` heads for each kv head to one key tile or several."""
    query_tile = max(16, 256 // group // 16 * 16)  # its heads are a product of up to 256 rows
    cube_rows = max(16 * count for count in range(1, 17) if query_tile * group % (16 * count) == 0)
    query_tile *= 1 if rows <= query_tile else 2
    if one_tile:  # short tasks, as cores are idle
        return PrefillTiles(query_tile, cube_rows, 32, 4)
    # Four such tiles at a time fit the unified buffer; where five were needed, PyPTO would carry some to memory and back.
    softmax_rows = min(32, 11264 // key_tile)
    return PrefillTiles(query_tile, cube_rows, softmax_rows, -(-query_tile * group // (2 * softmax_rows)))


def prefill_merge_tiles(rows: int, heads: int, columns: int) -> MergeTiles:
    """For merging the key tiles of many rows with parts of `columns` columns."""
    query_tile = _power_of_two_above(rows, 16, 256)
    most = min(12384 // columns, max(16, -(-heads * query_tile // _VECTOR_CORES)))  # for every core a task of a query tile, if it fits
    return MergeTiles(query_tile, -(-query_tile // -(-query_tile // most)))


class DecodeTiles(NamedTuple):
    """How decode attention is cut, over kv heads that are `width` columns wide together."""

    rows: int
    key_depth: int  # columns of keys that are multiplied at a time, in equal parts: PyPTO 0.2.0 does not compile what is left over
    key_load: int  # columns of keys of a load into L1
    columns: int  # of values, outputs of a task
    depth: int  # tokens of values that are multiplied at a time
    vector_rows: int  # heads of a softmax


def decode_tiles(heads: int, width: int, page_tokens: int) -> DecodeTiles:
    """For decode attention."""
    rows = _multiple(heads, 16)
    key_depth = math.gcd(width, 128)
    columns = _power_of_two_below(32768 // rows, min(width, 1024))
    depth = min(32768 // columns, page_tokens)
    return DecodeTiles(rows, key_depth, _multiple(min(width, 1024), key_depth), columns, depth, min(heads, 32))


def decode_merged_tasks(rows: int) -> int:
    """How many tasks of decode attention are made one: with few rows cores are idle, with many they wait for tasks."""
    return 2 if rows < 8 else 4


def head_rows_per_tile(width: int) -> int:
    """Rows of `width` columns, in heads, that are normalised and rotated at a time."""
    return max(1, min(16, 16384 // width))


def qk_rope_tiles(rows: int, heads: int, head_dim: int, kv_heads: int) -> RowTiles:
    """For qk_rope_kv_write; keys and values of the rows of a turn are written at a time."""
    loop_rows = _power_of_two_above(rows, 8, max(8, _power_of_two_below(65536 // (kv_heads * head_dim), 64)))
    elements = 8192 if rows <= 64 else 20480  # with few rows short tasks, on many cores
    return RowTiles(loop_rows, _power_of_two_below(elements // (heads * head_dim), 4))


class ExpertTiles(NamedTuple):
    """How the products of an expert are cut."""

    rows: int
    stored_rows: int  # of these, rows stored at a time
    columns: int  # outputs of a task
    depth: int  # inputs that are multiplied at a time
    load: int  # inputs of a load into L1


def expert_tiles(width: int, inner: int) -> ExpertTiles:
    """For experts between rows of `width` and of `inner` columns."""
    depth = min(128, _multiple(min(width, inner), 16))
    load = min(768 // depth * depth, _multiple(max(width, inner), depth))
    return ExpertTiles(16, head_rows_per_tile(width), min(256, _multiple(max(width, inner), 16)), depth, load)


def top_k_tile(count: int) -> int:
    """Columns that are sorted at a time to find the `count` greatest."""
    return max(2048, 2 * count)
