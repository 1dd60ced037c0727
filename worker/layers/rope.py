"""Rotary position embedding: frequencies by the rules of the checkpoints, and the table that the kernels read.

The formulas are those of transformers 5.24, `modeling_rope_utils.py`, in the same order of operations, so that the bits agree.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worker.checkpoint.config_fields import ConfigFields, ModelRefused

_DEFAULT_THETA = 10000.0
_LLAMA_POSITIONS, _QWEN_POSITIONS = 2048, 32768  # where config.json does not say, as in transformers


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions become angles."""

    inverse_frequencies: Tensor  # [head_dim / 2] float32
    factor: float  # multiplies cosine and sine
    max_positions: int

    def limited(self, max_positions: int | None) -> "Rope":
        """This one for at most `max_positions` positions."""
        return replace(self, max_positions=min(self.max_positions, max_positions or self.max_positions))

    def table(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each [max_positions, head_dim / 2] float32."""
        angles = torch.arange(self.max_positions, dtype=torch.float32)[:, None] * self.inverse_frequencies
        return (angles.cos() * self.factor).to(device), (angles.sin() * self.factor).to(device)


@dataclass(frozen=True, slots=True)
class _Scaling:
    """The fields that the rules read."""

    fields: ConfigFields
    theta: float
    head_dim: int
    original_positions: int
    max_positions: int

    @property
    def plain(self) -> Tensor:
        """Inverse frequencies without scaling."""
        return 1.0 / self.periods

    @property
    def periods(self) -> Tensor:
        """theta^(2i / head_dim)."""
        powers: Tensor = self.theta ** (torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)
        return powers


def read_rope(config: ConfigFields, head_dim: int) -> Rope:
    """The rope of a model, from `rope_parameters` or from the older `rope_scaling` and `rope_theta`; refuses kinds it does not know."""
    name = "rope_scaling" if "rope_scaling" in config else "rope_parameters"
    fields = config.section(name)
    kind = fields.text("rope_type", fields.text("type", "default"))
    if kind not in _RULES:
        raise fields.refusal("rope_type" if "rope_type" in fields else "type", f"one of {', '.join(_RULES)}")
    for section in (config, fields):
        if section.number("partial_rotary_factor", 1.0) != 1.0:
            raise section.refusal("partial_rotary_factor", "1; heads that are rotated in part are not supported")
    if "full_attention" in fields:
        raise fields.refusal("full_attention", "no parameters by type of layer")
    scaling = _read_scaling(config, fields, head_dim)
    try:
        inverse_frequencies, factor = _RULES[kind](scaling)
        positions = scaling.max_positions
        if kind == "yarn":  # some checkpoints state the scaled length in max_position_embeddings, others (Qwen2.5) that before scaling
            positions = max(positions, int(scaling.original_positions * _yarn_factor(scaling)))
    except (ArithmeticError, ValueError) as error:
        raise ModelRefused(f"{config.path}: {name} and rope_theta give no frequencies: {error}") from error
    return Rope(inverse_frequencies, factor, positions)


def _read_scaling(config: ConfigFields, fields: ConfigFields, head_dim: int) -> _Scaling:
    is_llama = config.texts("architectures") == ["LlamaForCausalLM"]
    max_positions = config.integer("max_position_embeddings", _LLAMA_POSITIONS if is_llama else _QWEN_POSITIONS)
    original = fields.integer("original_max_position_embeddings", max_positions)
    return _Scaling(
        fields=fields,
        theta=fields.number("rope_theta", config.number("rope_theta", _DEFAULT_THETA)),
        head_dim=head_dim,
        original_positions=config.integer("original_max_position_embeddings", original),
        max_positions=max_positions,
    )


def _default(scaling: _Scaling) -> tuple[Tensor, float]:
    return scaling.plain, 1.0


def _linear(scaling: _Scaling) -> tuple[Tensor, float]:
    return scaling.plain / scaling.fields.number("factor"), 1.0


def _llama3(scaling: _Scaling) -> tuple[Tensor, float]:
    """Long wavelengths are stretched, short ones kept, those between interpolated."""
    fields, plain = scaling.fields, scaling.plain
    factor, low, high = fields.number("factor"), fields.number("low_freq_factor"), fields.number("high_freq_factor")
    wavelengths = 2 * math.pi / plain
    longest, shortest = scaling.original_positions / low, scaling.original_positions / high
    stretched = torch.where(wavelengths > longest, plain / factor, plain)
    smooth = (scaling.original_positions / wavelengths - low) / (high - low)
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, (1 - smooth) * stretched / factor + smooth * stretched, stretched), 1.0


def _yarn(scaling: _Scaling) -> tuple[Tensor, float]:
    """YaRN (https://arxiv.org/abs/2309.00071): interpolate the slow dimensions, keep the fast ones, ramp between."""
    factor = _yarn_factor(scaling)
    low, high = _yarn_range(scaling)
    ramp = (torch.arange(scaling.head_dim // 2, dtype=torch.float32) - low) / (high - low)
    kept = 1 - ramp.clamp(0, 1)
    periods = scaling.periods
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept, _yarn_attention_factor(scaling.fields, factor)


def _yarn_factor(scaling: _Scaling) -> float:
    return scaling.fields.number("factor", scaling.max_positions / scaling.original_positions)


def _yarn_range(scaling: _Scaling) -> tuple[float, float]:
    """First and last dimension of the ramp."""
    fields = scaling.fields

    def dimension(rotations: float) -> float:
        return scaling.head_dim * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(scaling.theta))

    low, high = dimension(fields.number("beta_fast", 32)), dimension(fields.number("beta_slow", 1))
    if fields.flag("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, scaling.head_dim - 1)
    return low, high if low != high else high + 0.001


def _yarn_attention_factor(fields: ConfigFields, factor: float) -> float:
    if "attention_factor" in fields:
        return fields.number("attention_factor")
    if "mscale" in fields and "mscale_all_dim" in fields:
        return _magnitude(factor, fields.number("mscale")) / _magnitude(factor, fields.number("mscale_all_dim"))
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


_RULES: dict[str, Callable[[_Scaling], tuple[Tensor, float]]] = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
