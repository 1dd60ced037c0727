"""Matrices stored in few bits: compressed-tensors checkpoints, as config.json describes them in quantization_config.

Two of their formats are read:

    int-quantized   M.weight int8 [N, K], M.weight_scale [N, 1]; rows of activations are quantized to 8 bits as they come
    pack-quantized  M.weight_packed int32 [N, K / 8], eight levels of 4 bits in a word, lowest bits first; M.weight_scale [N, K / group];
                    M.weight_shape [2]; unless symmetric M.weight_zero_point int32 [N / 8, K / group], packed along N
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantized import Int4Weight, Int8Weight
from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ConfigFields, ModelRefused

_NAME = "quantization_config"
_PER_WORD = 8  # levels of 4 bits in an int32
_FREE = ("version", "global_compression_ratio", "observer", "observer_kwargs")  # say how it was made, not what it is
_NO_SUPPORT = "left out, as it is not supported"


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """How the quantized matrices of a checkpoint lie in its files, and which ones they are."""

    bits: int  # 8, or 4
    group: int  # inputs with a common scale; 0: all of an output's
    symmetric: bool
    targets: tuple[str, ...]
    ignored: tuple[str, ...]

    @property
    def name(self) -> str:
        """One word for ids and messages."""
        return "int8" if self.bits == 8 else f"int4:{self.group}"

    def covers(self, module: str) -> bool:
        """Whether the matrix of `module`, such as "model.layers.0.mlp.down_proj", is stored in this way."""
        return any(_matches(pattern, module) for pattern in self.targets) and not any(_matches(pattern, module) for pattern in self.ignored)

    def read(self, checkpoint: Checkpoint, module: str, rows: int, columns: int) -> Int8Weight | Int4Weight:
        """The matrix of `module`, [rows, columns]; ModelRefused when a tensor is missing or has another shape or type."""
        return (self._read_int8 if self.bits == 8 else self._read_int4)(checkpoint, module, rows, columns)

    @staticmethod
    def _read_int8(checkpoint: Checkpoint, module: str, rows: int, columns: int) -> Int8Weight:
        levels = checkpoint.tensor(f"{module}.weight", (rows, columns), (torch.int8,))
        return Int8Weight(levels, checkpoint.tensor(f"{module}.weight_scale", (rows, 1)).flatten())

    def _read_int4(self, checkpoint: Checkpoint, module: str, rows: int, columns: int) -> Int4Weight:
        if columns % self.group or columns % _PER_WORD:
            raise ModelRefused(
                f"{checkpoint.config.path}: {_NAME}: groups of {self.group} inputs do not divide the {columns} columns of {module}.weight"
            )
        words, groups = (torch.int32,), columns // self.group
        packed = checkpoint.tensor(f"{module}.weight_packed", (rows, columns // _PER_WORD), words)
        shape = checkpoint.tensor(f"{module}.weight_shape", (2,), (torch.int32, torch.int64))
        if shape.tolist() != [rows, columns]:
            raise ModelRefused(f"{checkpoint.config.path.parent}: tensor {module}.weight_shape is {shape.tolist()}, not {[rows, columns]}")
        scales = checkpoint.tensor(f"{module}.weight_scale", (rows, groups))
        zeros = None
        if not self.symmetric:
            stored = checkpoint.tensor(f"{module}.weight_zero_point", (-(-rows // _PER_WORD), groups), words)
            zeros = _unpack(stored.T).T[:rows].contiguous()
        return Int4Weight(_unpack(packed), scales if scales.dtype == torch.bfloat16 else scales.float(), zeros)


def read_stored_quantization(config: ConfigFields) -> StoredQuantization | None:
    """What quantization_config says; None when there is none, and ModelRefused when it asks for anything that is not supported."""
    if _NAME not in config:
        return None
    fields = config.section(_NAME)
    fields.one_of("quant_method", "compressed-tensors")
    bits = 8 if fields.one_of("format", "int-quantized", "pack-quantized") == "int-quantized" else 4
    fields.one_of("quantization_status", "compressed", None)
    fields.one_of("sparsity_config", {}, None)
    fields.one_of("transform_config", {}, None)
    _refuse_others(fields, "quant_method", "format", "quantization_status", "config_groups", "ignore")
    groups = fields.section("config_groups")
    if len(groups.names) != 1:
        raise fields.refusal("config_groups", "one group")
    group = groups.section(groups.names[0])
    group.one_of("format", fields.text("format"), None)
    _refuse_others(group, "format", "targets", "weights", "input_activations")
    weights = group.section("weights")
    _check_scheme(weights, bits)
    _check_activations(group, bits)
    return StoredQuantization(
        bits=bits,
        group=weights.integer("group_size") if bits == 4 else 0,
        symmetric=weights.flag("symmetric", default=True),
        targets=_read_patterns(group, "targets"),
        ignored=_read_patterns(fields, "ignore"),
    )


def _check_scheme(weights: ConfigFields, bits: int) -> None:
    weights.one_of("num_bits", bits)
    weights.one_of("type", "int", None)
    weights.one_of("strategy", "channel" if bits == 8 else "group")
    weights.one_of("dynamic", False, None)
    weights.one_of("actorder", "static", "weight", None)  # an order that leaves no trace in the files
    if bits == 8:
        weights.one_of("symmetric", True, None)
        weights.one_of("group_size", -1, None)
    elif weights.integer("group_size") % _PER_WORD:
        raise weights.refusal("group_size", f"a multiple of {_PER_WORD}")
    _refuse_others(weights, "num_bits", "type", "strategy", "dynamic", "actorder", "symmetric", "group_size")


def _check_activations(group: ConfigFields, bits: int) -> None:
    if bits == 4:
        group.one_of("input_activations", None)
        return
    activations = group.section("input_activations")
    activations.one_of("num_bits", 8)
    activations.one_of("type", "int", None)
    activations.one_of("strategy", "token")
    activations.one_of("dynamic", True)
    activations.one_of("symmetric", True, None)
    _refuse_others(activations, "num_bits", "type", "strategy", "dynamic", "symmetric")


def _refuse_others(fields: ConfigFields, *known: str) -> None:
    for name in fields.names:
        if name not in known and name not in _FREE:
            fields.one_of(name, None, {}, [], expected=_NO_SUPPORT)


def _read_patterns(fields: ConfigFields, name: str) -> tuple[str, ...]:
    """Names of modules, "re:" with a regular expression for them, and "Linear" for all."""
    patterns = fields.texts(name)
    for pattern in patterns:
        try:
            _compile(pattern)
        except re.error as error:
            raise fields.refusal(name, f"regular expressions after re:, which {pattern!r} is not: {error}") from error
    return tuple(patterns)


def _matches(pattern: str, module: str) -> bool:
    if pattern == "Linear":
        return not module.endswith(".embed_tokens")  # the class of all modules with a matrix but the embedding
    return bool(_compile(pattern)(module))


def _compile(pattern: str) -> Callable[[str], object]:
    if pattern.startswith("re:"):
        return re.compile(pattern.removeprefix("re:")).match
    return re.compile(re.escape(pattern)).fullmatch


def _unpack(words: Tensor) -> Tensor:
    """[N, K / 8] int32 -> [N, K] uint8."""
    octets = words.contiguous().view(torch.uint8)  # little-endian: the lowest bits come first
    return torch.stack((octets & 15, octets >> 4), dim=2).flatten(1)
