"""The numbers of rows that products of matrices are computed for.

oneDNN keeps code for every number of rows that it has met: half a megabyte a shape, three for a vocabulary. So rows are padded to whole
row tiles as long as they are few, as decode steps are, then to eight numbers for each power of two: 1, 2, .. 16, 18, 20, .. 32, 36, 40, ..
"""

import torch.nn.functional as F
from torch import Tensor


def padded_rows(num_rows: int, row_tile: int) -> int:
    """The least number on the ladder with room for `num_rows`; a multiple of the row tile, which is a power of two."""
    step = max(row_tile, (1 << (num_rows - 1).bit_length()) >> 4)
    return num_rows + -num_rows % step


def pad_rows(x: Tensor, row_tile: int) -> Tensor:
    """x [T, K] with rows of zeros at the end up to a number on the ladder."""
    padding = padded_rows(x.shape[0], row_tile) - x.shape[0]
    return F.pad(x, (0, 0, 0, padding)) if padding else x
