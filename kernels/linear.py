"""Linear layers over weights laid out once for the device, and the row tile that makes their rows independent of each other.

A row of a matrix product depends on its company only through the kernel that the library picks for the number of rows. Padded to
a multiple of the row tile every row comes out bit-identical for every number of rows; how large the tile must be is probed.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import ops

MAX_ROW_TILE = 8
_PROBE_WEIGHT_ROWS = 256  # repeated to the layer's width: how a sum is rounded depends on its length, not on which output it is
_PROBE_ROWS = 512
_PROBE_ROWS_WIDE = 64  # for vocabulary heads, whose products are dear: the choice of kernel is the same
_PROBE_WIDE = 8192


class RowTileError(RuntimeError):
    """No row tile up to MAX_ROW_TILE makes rows of this product independent of their company."""


class PackedLinear:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K]; T is a multiple of the row tile.

    On a CPU the weight is kept in oneDNN's blocked layout only: the tensor passed in may be freed.
    """

    __slots__ = ("_apply", "in_features", "out_features", "row_tile")

    def __init__(self, weight: Tensor, bias: Tensor | None, row_tile: int) -> None:
        self.out_features, self.in_features = weight.shape
        self.row_tile = row_tile
        self._apply = _packed(weight, bias) if _can_pack(weight) else _plain(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape[0] % self.row_tile == 0, f"{x.shape[0]} rows are not a multiple of the row tile {self.row_tile}"
        return self._apply(x)


class PackedExperts:
    """The MLPs of E experts: gate_up [E, 2I, H] (gates first) and down [E, H, I], each laid out as PackedLinear does."""

    __slots__ = ("down", "gate_up", "row_tile")

    def __init__(self, gate_up: Tensor, down: Tensor, row_tile: int) -> None:
        self.row_tile = row_tile
        self.gate_up = [PackedLinear(weight, None, row_tile) for weight in gate_up]
        self.down = [PackedLinear(weight, None, row_tile) for weight in down]

    @property
    def num_experts(self) -> int:
        return len(self.gate_up)

    def __call__(self, expert: int, rows: Tensor) -> Tensor:
        """One expert applied to rows [n, H], any n -> [n, H]."""
        num_rows = rows.shape[0]
        padding = -num_rows % self.row_tile
        padded = F.pad(rows, (0, 0, 0, padding)) if padding else rows
        return self.down[expert](ops.swiglu(self.gate_up[expert](padded)))[:num_rows]


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
    """Row ranges of few and of many tiles, by turns at the front and at the back."""
    sizes = sorted({tile * count for count in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)} | {64, 256, num_rows - tile})
    fitting = [size for size in sizes if 0 < size <= num_rows]
    return [(0, size) if turn % 2 else (num_rows - size, num_rows) for turn, size in enumerate(fitting)]


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _packed(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    pointwise = torch.ops.mkldnn._linear_pointwise.default

    def apply(x: Tensor) -> Tensor:
        return pointwise(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]

    return apply


def _plain(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    return apply
