"""Linear layers over weights of 8 and of 4 bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import ops
from kernels.cpu import products
from kernels.reference.moe import apply_experts
from kernels.reference.quantized import pack_scales


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """weight[n, k] = levels[n, k] * scales[n]."""

    levels: Tensor  # [N, K] int8
    scales: Tensor  # [N] float32


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """weight[n, k] = (levels[n, k] - zeros[n, g]) * scales[n, g] for the group g = k // (K / groups)."""

    levels: Tensor  # [N, K] uint8 in 0 .. 15
    scales: Tensor  # [N, groups] float32 or bfloat16
    zeros: Tensor | None = None  # [N, groups] uint8 in 0 .. 15; None: 8


QuantizedWeight = Int8Weight | Int4Weight
_Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Quantizer:
    """How weights are made of larger types: 8 bits with a scale for each output, or 4 bits with one for each `group` inputs."""

    bits: int
    group: int = 0

    @classmethod
    def parse(cls, name: str) -> "Quantizer":
        """Of "int8", "int4" (groups of 32) or "int4:128"."""
        kind, _, group = name.partition(":")
        return cls(8) if kind == "int8" else cls(4, int(group or 32))

    @property
    def name(self) -> str:
        """One word for ids and messages."""
        return "int8" if self.bits == 8 else f"int4:{self.group}"

    def __call__(self, weight: Tensor) -> QuantizedWeight:
        """weight [N, K], with K % group == 0 for 4 bits."""
        if self.bits == 8:
            return Int8Weight(*ops.quantize_int8(weight))
        return Int4Weight(*ops.quantize_int4(weight, self.group))


def stack_weights(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Weights [N_i, K] of one kind below one another."""
    if len(parts) == 1:
        return parts[0]
    levels, scales = torch.cat([part.levels for part in parts]), torch.cat([part.scales for part in parts])
    if isinstance(parts[0], Int8Weight):
        return Int8Weight(levels, scales)
    zeros = [part.zeros for part in parts if isinstance(part, Int4Weight) and part.zeros is not None]
    return Int4Weight(levels, scales, torch.cat(zeros) if zeros else None)


class QuantizedLinear:
    """x [T, K] -> x @ weight.T + bias [T, N], with the interface of kernels.linear.PackedLinear; T is any number.

    Rows are quantized to 8 bits as they come, by themselves, so that none depends on the others; for weights of 4 bits by their groups.
    With `gated` the result is silu(gate) * up [T, N / 2]. `dtype` is that of `rows`.
    """

    __slots__ = ("_gated", "_weight", "dtype", "in_features")

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, *, gated: bool = False, dtype: torch.dtype = torch.bfloat16) -> None:
        self.in_features = weight.levels.shape[1]
        self.dtype, self._gated = dtype, gated
        offset = None if bias is None else bias.float()
        self._weight = _Int8(weight, offset) if isinstance(weight, Int8Weight) else _Int4(weight, offset)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N], or [T, N / 2] if gated, of x's type."""
        out = self._weight.product(x, x.dtype)
        return ops.swiglu(out) if self._gated else out

    def float32(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N] in fp32; not for gated ones."""
        return self._weight.product(x, torch.float32)

    def rows(self, ids: Tensor) -> Tensor:
        """ids [T] int64 -> rows [T, K] of the weight: the look-up of an embedding that is tied to this head. For 8 bits only."""
        assert isinstance(self._weight, _Int8), "weights of 4 bits are not looked up"
        return self._weight.rows(ids, self.in_features, self.dtype)


class _Int8:
    __slots__ = ("_bias", "_brgemm", "_offsets", "_panels", "_scales")

    def __init__(self, weight: Int8Weight, bias: Tensor | None) -> None:
        self._panels, self._offsets = ops.pack_int8(weight.levels.contiguous())
        self._scales = weight.scales.float().contiguous()
        self._bias = bias
        self._brgemm = products.brgemm_kernel(torch.uint8) is not None

    def product(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return ops.int8_linear(x, self._panels, self._scales, self._offsets, self._bias, dtype, self._brgemm)

    def rows(self, ids: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return ops.int8_embedding(ids, self._panels, self._scales, width, dtype)


class _Int4:
    __slots__ = ("_bias", "_panels", "_scales", "_width", "_zeros")

    def __init__(self, weight: Int4Weight, bias: Tensor | None) -> None:
        self._width = weight.levels.shape[0]
        self._panels = ops.pack_int4(weight.levels.contiguous())
        self._scales = pack_scales(weight.scales)
        self._zeros = None if weight.zeros is None else pack_scales(weight.zeros)
        self._bias = bias

    def product(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return ops.int4_linear(x, self._panels, self._scales, self._zeros, self._bias, self._width, dtype)


class QuantizedExperts:
    """The MLPs of experts, each of two layers: a gated one of [2I, H], and down [H, I]."""

    __slots__ = ("_downs", "_gate_ups", "is_capturable")

    def __init__(self, gate_ups: Sequence[_Layer], downs: Sequence[_Layer]) -> None:
        self._gate_ups, self._downs = tuple(gate_ups), tuple(downs)
        self.is_capturable = False

    def __call__(self, x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        """x [T, H], weights and expert_ids [T, k] as ops.moe_route gives them -> [T, H]; no row depends on the others."""
        return apply_experts(x, weights, expert_ids, len(self._downs), lambda index, rows: self._downs[index](self._gate_ups[index](rows)))
