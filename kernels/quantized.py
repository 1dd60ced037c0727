"""Linear layers over weights of 8 and of 4 bits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import ops
from kernels.reference.moe import apply_experts
from kernels.reference.quantized import pack_int4, pack_int8, pack_scales

_INT8_LEVELS = 127
_LEAST_SCALE = 1e-30


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
        return quantize_int8(weight) if self.bits == 8 else quantize_int4(weight, self.group)


def stack_weights(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Weights [N_i, K] of one kind below one another."""
    if len(parts) == 1:
        return parts[0]
    levels, scales = torch.cat([part.levels for part in parts]), torch.cat([part.scales for part in parts])
    if isinstance(parts[0], Int8Weight):
        return Int8Weight(levels, scales)
    zeros = [part.zeros for part in parts if isinstance(part, Int4Weight) and part.zeros is not None]
    return Int4Weight(levels, scales, torch.cat(zeros) if zeros else None)


class Int8Linear:
    """x [T, K] -> x @ weight.T + bias [T, N]; rows are quantized to 8 bits, each by itself, so that none depends on the others."""

    __slots__ = ("_bias", "_offsets", "_packed", "_scales", "in_features", "out_features")

    def __init__(self, weight: Int8Weight, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.levels.shape
        self._packed = pack_int8(weight.levels)
        self._scales = weight.scales.float().contiguous()
        self._offsets = 128 * self._packed.sum((1, 3), dtype=torch.int32).flatten()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return ops.int8_linear(x, self._packed, self._scales, self._offsets, self._bias)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows `ids` [T] of the weight -> [T, K]: what an embedding looks up."""
        return ops.int8_embedding(ids, self._packed, self._scales, self.in_features, dtype)


class Int4Linear:
    """The same for 4 bits; rows are quantized to 8 bits by the groups of the weight."""

    __slots__ = ("_bias", "_packed", "_scales", "_zeros", "in_features", "out_features")

    def __init__(self, weight: Int4Weight, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.levels.shape
        self._packed = pack_int4(weight.levels)
        self._scales = pack_scales(weight.scales)
        self._zeros = None if weight.zeros is None else pack_scales(weight.zeros)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return ops.int4_linear(x, self._packed, self._scales, self._zeros, self._bias, self.out_features)


QuantizedLinear = Int8Linear | Int4Linear


def pack_linear(weight: QuantizedWeight, bias: Tensor | None = None) -> QuantizedLinear:
    """The layer for a weight."""
    return Int8Linear(weight, bias) if isinstance(weight, Int8Weight) else Int4Linear(weight, bias)


class QuantizedExperts:
    """The MLPs of experts, each of two layers: gates and ups [2I, H], gates first, and down [H, I]."""

    __slots__ = ("_downs", "_gate_ups", "is_capturable")

    def __init__(self, gate_ups: Sequence[QuantizedLinear], downs: Sequence[QuantizedLinear]) -> None:
        self._gate_ups, self._downs = tuple(gate_ups), tuple(downs)
        self.is_capturable = False

    def __call__(self, x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        """x [T, H], weights and expert_ids [T, k] as ops.moe_route gives them -> [T, H]; no row depends on the others."""
        return apply_experts(x, weights, expert_ids, len(self._downs), self._expert)

    def _expert(self, index: int, rows: Tensor) -> Tensor:
        return self._downs[index](ops.swiglu(self._gate_ups[index](rows)))


def quantize_int8(weight: Tensor) -> Int8Weight:
    """weight [N, K], symmetric with one scale per output: the largest magnitude becomes 127."""
    weight = weight.float()
    scales = (weight.abs().amax(1) / _INT8_LEVELS).clamp_min(_LEAST_SCALE)
    return Int8Weight(torch.round(weight / scales[:, None]).to(torch.int8), scales)


def quantize_int4(weight: Tensor, group: int) -> Int4Weight:
    """weight [N, K] with a scale and a zero point for every `group` inputs, K % group == 0: its range becomes 0 .. 15."""
    groups = weight.float().unflatten(1, (-1, group))
    low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
    scales = ((high - low) / 15).clamp_min(_LEAST_SCALE).to(torch.bfloat16)
    zeros = torch.round(-low / scales.float()).clamp(0, 15)
    levels = torch.round(groups / scales.float()[:, :, None] + zeros[:, :, None]).clamp(0, 15)
    return Int4Weight(levels.to(torch.uint8).flatten(1), scales, zeros.to(torch.uint8))
