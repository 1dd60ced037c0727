"""Linear layers over weights laid out once for the device.

On a CPU a row of a result has the same bits whatever the number and the content of the other rows (see kernels.cpu.products; not so with
torch's own products, which serve where the C++ kernels are not built). The weight is kept in panels: the tensor passed in may be freed.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import ops
from kernels.cpu import products

_panels = torch.ops.pypto_serving


class PackedLinear:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K]; T is any number, N and K too. float32, bfloat16, float16.

    The weight may come in parts [N_i, K], to be below one another: on a CPU they are packed from where they lie, without a copy first.
    With `gated` the weight holds N / 2 gates and then as many ups, and the result is silu(gate) * up [T, N / 2], with the bits of the
    plain product followed by ops.swiglu.
    """

    __slots__ = ("_weight",)

    def __init__(self, weight: Tensor | Sequence[Tensor], bias: Tensor | None, *, gated: bool = False) -> None:
        parts = _as_parts(weight)
        in_panels = _is_on_host(parts[0]) and products.method(parts[0].dtype) != "torch"
        self._weight: _Panels | _Stored = _Panels(parts, bias, gated) if in_panels else _Stored(parts, bias, gated)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N], or [T, N / 2] if gated, of x's type."""
        return self._weight.product(x)

    def float32(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N] in fp32: on a CPU the sums as they are, not rounded to x's type; not for gated ones."""
        return self._weight.float32(x)

    def rows(self, ids: Tensor) -> Tensor:
        """ids [T] int64 -> rows [T, K] of the weight, as they were: the look-up of an embedding that is tied to this head."""
        return self._weight.rows(ids)


class PackedExperts:
    """The MLPs of E experts: gate_up [E, 2I, H] (gates first) and down [E, H, I], laid out once like the weights of PackedLinear.

    With `num_experts` both may come in parts that lie below one another, gates and ups of each expert in turn, as for PackedLinear.
    """

    __slots__ = ("_brgemm", "_down", "_gate_up", "_in_panels", "_inner", "is_capturable")

    def __init__(self, gate_up: Tensor | Sequence[Tensor], down: Tensor | Sequence[Tensor], num_experts: int | None = None) -> None:
        count = len(down) if num_experts is None else num_experts
        gate_ups, downs = _as_parts(gate_up), _as_parts(down)
        self.is_capturable = ops.can_capture_experts(downs[0].device.type)
        self._inner = downs[0].shape[-1]
        method = products.method(downs[0].dtype) if _is_on_host(downs[0]) else "torch"
        self._in_panels, self._brgemm = method != "torch", method == "brgemm"
        if self._in_panels:
            self._gate_up, self._down = _panels.pack_parts(gate_ups, True, count), _panels.pack_parts(downs, False, count)
        else:
            self._gate_up, self._down = (_below_one_another(parts).view(count, -1, parts[0].shape[-1]) for parts in (gate_ups, downs))

    def __call__(self, x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        """x [T, H], weights and expert_ids [T, k] as ops.moe_route gives them -> [T, H]; no row depends on the others."""
        if not self._in_panels:
            return ops.moe_experts(x, weights, expert_ids, self._gate_up, self._down)
        return _panels.packed_experts(  # type: ignore[no-any-return]
            x, weights, expert_ids, self._gate_up, self._down, self._inner, self._brgemm
        )


class _Panels:
    """A weight of a CPU, in panels."""

    __slots__ = ("_bias", "_brgemm", "_panels", "_result", "_shape")

    def __init__(self, parts: Sequence[Tensor], bias: Tensor | None, gated: bool) -> None:
        self._shape = (sum(len(part) for part in parts), parts[0].shape[1])
        self._brgemm = products.method(parts[0].dtype) == "brgemm"
        self._panels = _panels.pack_parts(parts, gated)
        self._bias = None if bias is None else _panels.pack_weight(bias.float().view(-1, 1), gated)
        self._result = "gated" if gated else "plain"

    def product(self, x: Tensor) -> Tensor:
        return _panels.packed_linear(x, self._panels, self._bias, self._shape[0], self._result, self._brgemm)  # type: ignore[no-any-return]

    def float32(self, x: Tensor) -> Tensor:
        return _panels.packed_linear(x, self._panels, self._bias, self._shape[0], "float32", self._brgemm)  # type: ignore[no-any-return]

    def rows(self, ids: Tensor) -> Tensor:
        return _panels.packed_rows(ids, self._panels, *self._shape)  # type: ignore[no-any-return]


class _Stored:
    """A weight as the checkpoint has it: on accelerators, whose operators dispatch by device, and for torch's own products."""

    __slots__ = ("_bias", "_gated", "_product", "_weight")

    def __init__(self, parts: Sequence[Tensor], bias: Tensor | None, gated: bool) -> None:
        self._weight, self._bias, self._gated = _below_one_another(parts), bias, gated
        self._product = F.linear if _is_on_host(self._weight) else ops.linear

    def product(self, x: Tensor) -> Tensor:
        out = self._product(x, self._weight, self._bias) if x.shape[0] else x.new_empty(0, self._weight.shape[0])
        return ops.swiglu(out) if self._gated else out

    def float32(self, x: Tensor) -> Tensor:
        return self.product(x).float()

    def rows(self, ids: Tensor) -> Tensor:
        return ops.embedding(ids, self._weight)


def _as_parts(weight: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [part.contiguous() for part in ([weight] if isinstance(weight, Tensor) else weight)]


def _below_one_another(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _is_on_host(weight: Tensor) -> bool:
    return weight.is_cpu
