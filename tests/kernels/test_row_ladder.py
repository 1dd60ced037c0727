"""The numbers of rows that products are computed for."""

import pytest
import torch

from kernels.row_ladder import pad_rows, padded_rows


def test_few_rows_fill_whole_tiles_and_more_the_next_eighth_of_a_power_of_two():
    assert [padded_rows(count, 2) for count in (0, 1, 2, 7, 31, 33, 65, 257, 510, 513)] == [0, 2, 2, 8, 32, 36, 72, 288, 512, 576]


@pytest.mark.parametrize("row_tile", [1, 2, 4, 8])
def test_sizes_are_few_hold_whole_tiles_and_waste_little(row_tile):
    sizes = [padded_rows(count, row_tile) for count in range(8193)]
    assert len(set(sizes)) <= 90 and not any(size % row_tile for size in sizes)
    assert all(size - count < max(row_tile, count / 8 + 1) for count, size in enumerate(sizes))
    assert all(padded_rows(size, row_tile) == size for size in sizes)


def test_rows_of_zeros_are_put_at_the_end():
    rows = torch.ones(33, 3)
    padded = pad_rows(rows, 2)
    assert padded.shape == (36, 3) and torch.equal(padded[:33], rows) and not padded[33:].any()
    assert pad_rows(padded, 2) is padded
