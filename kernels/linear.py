"""Linear layers over weights laid out once for the device, and the row tile that makes their rows independent of each other.

A row of a matrix product depends on its company only through the kernel that the library picks for the number of rows. Padded to
a multiple of the row tile every row comes out bit-identical for every number of rows; how large the tile must be is probed.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import ops
from kernels.reference.moe import apply_experts

_Experts = Callable[[Tensor, Tensor, Tensor], Tensor]

MAX_ROW_TILE = 8
_PROBE_WEIGHT_ROWS = 256  # repeated to the layer's width: how a sum is rounded depends on its length, not on which output it is
_PROBE_ROWS = 512
_PROBE_ROWS_WIDE = 64  # for vocabulary heads, whose products are dear: the choice of kernel is the same
_PROBE_WIDE = 8192


class RowTileError(RuntimeError):
    """No row tile up to MAX_ROW_TILE makes rows of this product independent of their company."""


class PackedLinear:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K]; T is a multiple of the row tile.

    On a CPU the weight is kept in oneDNN's blocked layout only: the tensor passed in may be freed. Elsewhere it is kept as it is.
    """

    __slots__ = ("_apply", "in_features", "out_features", "row_tile")

    def __init__(self, weight: Tensor, bias: Tensor | None, row_tile: int) -> None:
        self.out_features, self.in_features = weight.shape
        self.row_tile = row_tile
        self._apply = _on_host(weight, bias) if _is_on_host(weight) else _on_accelerator(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape[0] % self.row_tile == 0, f"{x.shape[0]} rows are not a multiple of the row tile {self.row_tile}"
        return self._apply(x)


class PackedExperts:
    """The MLPs of E experts: gate_up [E, 2I, H] (gates first) and down [E, H, I], laid out once like the weights of PackedLinear."""

    __slots__ = ("_apply", "is_capturable")

    def __init__(self, gate_up: Tensor, down: Tensor, row_tile: int) -> None:
        self.is_capturable = ops.can_capture_experts(gate_up.device.type)
        on_host = _is_on_host(gate_up)
        self._apply = _experts_on_host(gate_up, down, row_tile) if on_host else _experts_on_accelerator(gate_up, down)

    def __call__(self, x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        """x [T, H], weights and expert_ids [T, k] as ops.moe_route gives them -> [T, H]; no row depends on the others."""
        return self._apply(x, weights, expert_ids)


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


def _is_on_host(weight: Tensor) -> bool:
    return weight.is_cpu


def _on_host(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return _packed(weight, bias) if _can_pack(weight) else _plain(weight, bias)


def _can_pack(weight: Tensor) -> bool:
    if not torch._C._has_mkldnn:
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


def _on_accelerator(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    weight = weight.contiguous()

    def apply(x: Tensor) -> Tensor:
        return ops.linear(x, weight, bias) if x.shape[0] else x.new_empty(0, weight.shape[0])

    return apply


def _experts_on_host(gate_up: Tensor, down: Tensor, row_tile: int) -> _Experts:
    gate_ups, downs = ([PackedLinear(weight, None, row_tile) for weight in weights] for weights in (gate_up, down))

    def expert(index: int, rows: Tensor) -> Tensor:
        num_rows = rows.shape[0]
        padding = -num_rows % row_tile
        padded = F.pad(rows, (0, 0, 0, padding)) if padding else rows
        return downs[index](ops.swiglu(gate_ups[index](padded)))[:num_rows]

    def apply(x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        return apply_experts(x, weights, expert_ids, len(gate_ups), expert)

    return apply


def _experts_on_accelerator(gate_up: Tensor, down: Tensor) -> _Experts:
    gate_up, down = gate_up.contiguous(), down.contiguous()

    def apply(x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        return ops.moe_experts(x, weights, expert_ids, gate_up, down)

    return apply
