"""Linear layers over weights laid out once for the device."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import ops
from kernels.reference.moe import apply_experts
from kernels.row_ladder import pad_rows

_Experts = Callable[[Tensor, Tensor, Tensor], Tensor]


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
        return downs[index](ops.swiglu(gate_ups[index](pad_rows(rows, row_tile))))[: rows.shape[0]]

    def apply(x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        return apply_experts(x, weights, expert_ids, len(gate_ups), expert)

    return apply


def _experts_on_accelerator(gate_up: Tensor, down: Tensor) -> _Experts:
    gate_up, down = gate_up.contiguous(), down.contiguous()

    def apply(x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        return ops.moe_experts(x, weights, expert_ids, gate_up, down)

    return apply
