"""Tensors of a checkpoint in the type and on the device in which they are computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.error import ModelRefused

_STALE_SUFFIX = ".rotary_emb.inv_freq"  # old Llama checkpoints store what is computed from config.json


@dataclass(frozen=True, slots=True)
class Weights:
    """Copies tensors out of the mapped files, one at a time, converting and fusing on the way."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    progress: Callable[[], None]  # called after every tensor

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor."""
        return self.stacked([name], [shape[0]], *shape[1:])

    def stacked(self, names: Sequence[str], rows: Sequence[int], *row_shape: int) -> Tensor:
        """Tensors below one another: name i has the shape [rows[i], *row_shape]."""
        stack = torch.empty(sum(rows), *row_shape, dtype=self.dtype, device=self.device)
        for name, part in zip(names, torch.split(stack, list(rows)), strict=True):
            part.copy_(self.checkpoint.tensor(name, part.shape))
            self.progress()
        return stack

    def refuse_unread(self) -> None:
        """Raise ModelRefused when the checkpoint holds a tensor that the model has no place for."""
        unread = sorted(name for name in self.checkpoint.unread if not name.endswith(_STALE_SUFFIX))
        if unread:
            more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise ModelRefused(f"{self.checkpoint.config.path.parent}: the model has no place for tensor {unread[0]}{more}")
