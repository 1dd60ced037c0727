"""The tensors that hold keys and values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.step import CacheGroup

# Padding rows write here; nothing ever reads it.
_NUM_SCRATCH_PAGES = 1


@dataclass(frozen=True, slots=True)
class CacheGroupSpec:
    """A cache group before its number of pages is known."""

    name: str
    layers: tuple[int, ...]  # layers of the model, in order
    page_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window_tokens: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes that one token takes in one layer: its key and its value."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes that one page takes in all layers."""
        return self.row_bytes * self.page_tokens * len(self.layers)

    def sized(self, num_pages: int) -> CacheGroup:
        """The group with `num_pages` pages per partition."""
        return CacheGroup(self.name, len(self.layers), self.page_tokens, self.row_bytes, num_pages, self.window_tokens)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every layer, each [pages, page_tokens, num_kv_heads, head_dim].

    Pages of a group:  | partition 0 | partition 1 | ... | scratch |
    """

    keys: tuple[Tensor, ...]  # one per layer
    values: tuple[Tensor, ...]  # one per layer
    groups: tuple[CacheGroup, ...]
    scratch_slots: tuple[int, ...]  # one per group: a slot that padding rows may write to


def allocate_cache(specs: Sequence[CacheGroupSpec], num_pages: Sequence[int], num_partitions: int, device: torch.device) -> KVCache:
    """A zero-filled cache with `num_pages[group]` pages in each partition of a group."""
    tensors: dict[int, tuple[Tensor, Tensor]] = {}
    for spec, pages in zip(specs, num_pages, strict=True):
        shape = (pages * num_partitions + _NUM_SCRATCH_PAGES, spec.page_tokens, spec.num_kv_heads, spec.head_dim)
        for layer in spec.layers:
            tensors[layer] = (_zeros(shape, spec.dtype, device), _zeros(shape, spec.dtype, device))
    return KVCache(
        keys=tuple(tensors[layer][0] for layer in sorted(tensors)),
        values=tuple(tensors[layer][1] for layer in sorted(tensors)),
        groups=tuple(spec.sized(pages) for spec, pages in zip(specs, num_pages, strict=True)),
        scratch_slots=tuple(pages * num_partitions * spec.page_tokens for spec, pages in zip(specs, num_pages, strict=True)),
    )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; in host memory they cost nothing until they are written to, whereas torch.zeros touches every page at once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
