"""The table of tiles: every tile fits the memory of a core, for the shapes of every model."""

import itertools

import pytest
from harness.kernels.generated_kernels import MODELS

from kernels.pypto.tiles import decode_tiles, linear_tiles, norm_tiles, prefill_merge_tiles, prefill_tiles, swiglu_tiles

KIB = 1024
# Hidden sizes, feed-forward sizes and vocabularies from a tiny model to one of 70 billion parameters, and sizes that divide by nothing.
SIZES = [16, 48, 64, 100, 576, 1024, 1040, 2048, 3072, 4096, 5120, 6144, 8192, 17408, 28672, 34816, 49152, 57344, 128256, 151936]


@pytest.mark.parametrize("rows", [1, 8, 16, 17, 32, 100, 128, 129, 4096])
def test_tiles_of_products_fit(rows):
    for out_features, in_features in itertools.product(SIZES, SIZES[:-4]):
        tiles = linear_tiles(rows, out_features, in_features)
        assert all(tile > 0 and tile % 16 == 0 for tile in tiles[:-1])
        assert 2 * (tiles.rows * tiles.x_depth + tiles.columns * tiles.weight_depth) <= 512 * KIB, (out_features, in_features)
        assert 2 * tiles.rows * tiles.depth <= 64 * KIB and 2 * tiles.columns * tiles.depth <= 64 * KIB
        assert 4 * tiles.rows * tiles.columns <= 128 * KIB


def test_depths_of_a_product_nest():
    for out_features, in_features, rows in itertools.product(SIZES, SIZES[:-4], (1, 32, 128)):
        tiles = linear_tiles(rows, out_features, in_features)
        assert max(tiles.x_depth, tiles.weight_depth) % min(tiles.x_depth, tiles.weight_depth) == 0
        assert tiles.weight_depth % tiles.depth == 0 and tiles.x_depth % tiles.depth == 0


def test_how_a_row_is_summed_does_not_depend_on_the_number_of_rows():
    for out_features, in_features in itertools.product(SIZES, SIZES[:-4]):
        assert len({linear_tiles(rows, out_features, in_features)[2] for rows in (1, 16, 17, 64, 129, 4096)}) == 1


def test_few_kernels_are_compiled():
    assert len({linear_tiles(rows, 4096, 1024) for rows in range(1, 5000)}) == 3


def test_few_kernels_of_prefill_are_compiled():
    assert len({prefill_tiles(rows, 2, KEY_TILE, one_tile) for rows in range(1, 5000) for one_tile in (True, False)}) == 4
    assert len({prefill_merge_tiles(rows, 16, 144) for rows in range(1, 5000)}) == 5


#: Heads, kv heads and their width, of published models and of two with one kv head; docs of PyPTO bound the vector tile of a reduction.
HEADS = [(m.heads, m.kv_heads, m.head_dim) for m in MODELS.values()] + [(32, 1, 128), (71, 1, 64)]
MOST_REDUCED = 64 * KIB
KEY_TILE = 4 * 128


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_tiles_of_attention_fit(heads, kv_heads, head_dim):
    decode = decode_tiles(heads, kv_heads * head_dim, 128)
    assert 4 * decode.vector_rows * KEY_TILE <= MOST_REDUCED
    assert 4 * decode.rows * max(decode.columns, 128) <= 128 * KIB and 2 * decode.columns * decode.depth <= 64 * KIB
    for rows in (1, 100, 2048):
        prefill = prefill_tiles(rows, heads // kv_heads, KEY_TILE, one_tile=False)
        assert 4 * 4 * prefill.softmax_rows * KEY_TILE <= 180 * KIB, "PyPTO would carry what does not fit to memory and back"
        assert 1 <= prefill.merged <= -(-prefill.query_tile * (heads // kv_heads) // prefill.softmax_rows)
        merge = prefill_merge_tiles(rows, heads, head_dim + 16)
        assert 4 * merge.vector_rows * (head_dim + 16) <= MOST_REDUCED and merge.vector_rows <= merge.query_tile
        assert 4 * prefill.cube_rows * 128 <= 128 * KIB and prefill.cube_rows % 16 == 0
        assert prefill.query_tile * (heads // kv_heads) % prefill.cube_rows == 0


@pytest.mark.parametrize("width", [64, 128, 576, 1024, 5120, 17408])
def test_rows_of_a_norm_are_reduced_within_the_limit(width):
    assert norm_tiles(128, width).task_rows == 1 or 4 * norm_tiles(128, width).task_rows * width <= MOST_REDUCED


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 4096])
def test_tiles_of_the_gated_activation_fit(rows):
    for width in SIZES:
        loop_rows, task_rows, columns = swiglu_tiles(rows, width)
        assert loop_rows % task_rows == 0 and columns % 16 == 0
        assert 4 * task_rows * columns <= 80 * KIB, width
