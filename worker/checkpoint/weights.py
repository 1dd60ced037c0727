"""Tensors of a checkpoint in the type and on the device in which they are computed, and the layers over its matrices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.cpu import products
from kernels.linear import PackedLinear
from kernels.quantized import QuantizedLinear, QuantizedWeight, Quantizer, stack_weights
from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ModelRefused
from worker.checkpoint.quantization import StoredQuantization

_STALE_SUFFIX = ".rotary_emb.inv_freq"  # old Llama checkpoints store what is computed from config.json

Linear = PackedLinear | QuantizedLinear


@dataclass(frozen=True, slots=True)
class Weights:
    """Takes tensors out of the mapped files, one at a time, converting, fusing and packing on the way."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    progress: Callable[[], None]  # called after every tensor
    quantizer: Quantizer | None = None  # for the matrices of a checkpoint that is not quantized
    stored: StoredQuantization | None = None  # of a checkpoint that is

    @property
    def quantization(self) -> str:
        """How matrices are quantized, in one word; "" when they are not."""
        return self.stored.name if self.stored else self.quantizer.name if self.quantizer else ""

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor."""
        return self.stacked([name], [shape[0]], *shape[1:])

    def stacked(self, names: Sequence[str], rows: Sequence[int], *row_shape: int) -> Tensor:
        """Tensors below one another: name i has the shape [rows[i], *row_shape]."""
        stack = torch.empty(sum(rows), *row_shape, dtype=self.dtype, device=self.device)
        for name, part in zip(names, torch.split(stack, list(rows)), strict=True):
            part.copy_(self.checkpoint.tensor(name, part.shape))
            self.checkpoint.release()
            self.progress()
        return stack

    def parts(self, names: Sequence[str], rows: Sequence[int], *row_shape: int) -> list[Tensor]:
        """Tensors to be laid out below one another: those of the mapped files where they are packed from there, else stacked already.

        Call `checkpoint.release` when they are packed.
        """
        if self.device.type != "cpu" or products.method(self.dtype) == "torch":
            return [self.stacked(names, rows, *row_shape)]
        parts = []
        for name, count in zip(names, rows, strict=True):
            parts.append(self.checkpoint.tensor(name, (count, *row_shape)).to(self.dtype))
            self.progress()
        return parts

    def linear(self, modules: Sequence[str], rows: Sequence[int], columns: int, *, bias: bool = False, gated: bool = False) -> Linear:
        """One layer over the matrices of modules below one another: number i has the shape [rows[i], columns]."""
        offset = self.stacked([f"{module}.bias" for module in modules], rows) if bias else None
        layer: Linear
        if self.is_quantized(modules):
            parts = [self._quantized(module, count, columns) for module, count in zip(modules, rows, strict=True)]
            layer = QuantizedLinear(stack_weights(parts), offset, gated=gated, dtype=self.dtype)
        else:
            layer = PackedLinear(self.parts([f"{module}.weight" for module in modules], rows, columns), offset, gated=gated)
        self.checkpoint.release()
        return layer

    def head(self, module: str, rows: int, columns: int) -> Linear:
        """A layer over a matrix with a row for every token. 4 bits would harm it: --quantize gives it 8."""
        eight_bits = self.quantizer and Quantizer(8)
        return replace(self, quantizer=eight_bits).linear([module], [rows], columns)

    def is_quantized(self, modules: Sequence[str]) -> bool:
        """Whether the matrices of modules are, or become, quantized; ModelRefused when some of them are and some are not."""
        if self.stored is None:
            return self.quantizer is not None
        covered = [module for module in modules if self.stored.covers(module)]
        if covered and len(covered) < len(modules):
            other = next(module for module in modules if module not in covered)
            unlike = f"{covered[0]} is quantized and {other} is not; both or none is supported"
            raise ModelRefused(f"{self.checkpoint.config.path}: quantization_config: {unlike}")
        return bool(covered)

    def refuse_unread(self) -> None:
        """Raise ModelRefused when the checkpoint holds a tensor that the model has no place for."""
        unread = sorted(name for name in self.checkpoint.unread if not name.endswith(_STALE_SUFFIX))
        if unread:
            more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise ModelRefused(f"{self.checkpoint.config.path.parent}: the model has no place for tensor {unread[0]}{more}")

    def _quantized(self, module: str, rows: int, columns: int) -> QuantizedWeight:
        if self.stored is not None:
            weight = self.stored.read(self.checkpoint, module, rows, columns)
        else:
            assert self.quantizer is not None
            if self.quantizer.group and columns % self.quantizer.group:
                groups = f"groups of {self.quantizer.group} do not divide the {columns} columns of {module}.weight"
                raise ModelRefused(f"--quantize {self.quantizer.name}: {groups}")
            weight = self.quantizer(self.checkpoint.tensor(f"{module}.weight", (rows, columns)))
        self.progress()
        return weight
