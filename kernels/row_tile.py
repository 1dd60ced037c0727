"""The row tile: a number of rows whose multiples make the rows of a matrix product independent of each other.

A row of a product depends on its company only through the kernel that the library picks for the number of rows. Padded to a multiple of
the row tile every row comes out bit-identical for every number of rows; how large the tile must be is probed.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.linear import PackedLinear
from kernels.row_ladder import padded_rows

MAX_ROW_TILE = 8
_PROBE_WEIGHT_ROWS = 256  # repeated to the layer's width: how a sum is rounded depends on its length, not on which output it is
_PROBE_ROWS = 512
_PROBE_ROWS_WIDE = 64  # for vocabulary heads, whose products are dear: the choice of kernel is the same
_PROBE_WIDE = 8192


class RowTileError(RuntimeError):
    """No row tile up to MAX_ROW_TILE makes rows of this product independent of their company."""


def find_row_tile(shapes: Sequence[tuple[int, int]], dtype: torch.dtype, device: torch.device | str = "cpu") -> int:
    """The smallest power of two, at most MAX_ROW_TILE, that makes every row of every product (N, K) bit-identical in any company.

    Probes on the very path that PackedLinear takes, with inputs on which every change of order shows. Raises RowTileError naming the
    first shape without one.
    """
    tile = 1
    for out_features, in_features in sorted(set(shapes)):
        tile = _probe(out_features, in_features, dtype, torch.device(device), tile)
    return tile


def _probe(out_features: int, in_features: int, dtype: torch.dtype, device: torch.device, tile: int) -> int:
    weight = _cancelling(_PROBE_WEIGHT_ROWS, in_features, -1.0).to(device, dtype)[
        torch.arange(out_features, device=device) % _PROBE_WEIGHT_ROWS
    ]
    rows = _cancelling(_PROBE_ROWS if out_features < _PROBE_WIDE else _PROBE_ROWS_WIDE, in_features, 1.0).to(device, dtype)
    linear = PackedLinear(weight, None, 1)
    expected = linear(rows)
    while tile <= MAX_ROW_TILE:
        if all(torch.equal(linear(rows[first:last]), expected[first:last]) for first, last in _probe_ranges(tile, rows.shape[0])):
            return tile
        tile *= 2
    raise RowTileError(
        f"linear of {out_features} x {in_features} in {dtype} on {device}: "
        f"its rows depend on their company for every row tile up to {MAX_ROW_TILE}"
    )


def _cancelling(num_rows: int, length: int, sign: float) -> Tensor:
    """Random rows whose second half repeats the first one shuffled, times `sign`.

    The products of two such rows, of opposite signs, add up to nothing but rounding errors. These show any change in the order of
    the additions, which rounding the result of an ordinary sum to bf16 nearly always hides.
    """
    generator = torch.Generator().manual_seed(length)
    order = torch.randperm(length // 2, generator=generator)
    half = torch.randn(num_rows, length // 2, generator=generator)
    return F.pad(torch.cat((half, sign * half[:, order]), dim=1), (0, length % 2))


def _probe_ranges(tile: int, num_rows: int) -> list[tuple[int, int]]:
    """Row ranges of all sizes on the ladder, by turns at the front and at the back."""
    sizes = sorted({padded_rows(count, tile) for count in range(1, num_rows + 1)})
    return [(0, size) if turn % 2 else (num_rows - size, num_rows) for turn, size in enumerate(sizes)]
