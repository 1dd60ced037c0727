"""KV memory: how many pages there are, and the tensors that hold keys and values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.contract import MAX_PAGES
from worker.step import CacheGroup

# Padding rows write here; nothing ever reads it.
_NUM_SCRATCH_PAGES = 1
# The rest is for weights that are still to be touched, activations, and whatever else runs on the machine.
_SHARE_OF_FREE_MEMORY = 0.4


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
        return CacheGroup(self.name, self.page_tokens, num_pages, self.window_tokens, len(self.layers), self.row_bytes)


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


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """The most that the lanes of a worker can ask for."""

    max_lanes: int
    max_model_len: int
    max_step_tokens: int
    num_partitions: int = 1


def size_pool(specs: Sequence[CacheGroupSpec], demand: PoolDemand, free_bytes: int, num_pages: int | None = None) -> tuple[int, ...]:
    """Pages per partition of every group: `num_pages` where given, else what the demand needs, as far as it fits into the memory.

    When not all fits, every group gets the same share of its need. Raises StartUpError when less than a page per group fits, or less than
    the given number.
    """
    wanted = [_wanted_pages(spec, demand) if num_pages is None else num_pages for spec in specs]
    wanted_bytes = sum(pages * spec.page_bytes for pages, spec in zip(wanted, specs, strict=True)) * demand.num_partitions
    if num_pages is not None and wanted_bytes > free_bytes:
        raise StartUpError(f"--num-pages {num_pages} takes {wanted_bytes:,} bytes; {free_bytes:,} bytes are free: lower it")
    wanted_in_all = sum(wanted) * demand.num_partitions
    if num_pages is not None and wanted_in_all > MAX_PAGES:
        raise StartUpError(f"--num-pages {num_pages} makes {wanted_in_all} pages, a worker may have {MAX_PAGES}: lower it")
    if num_pages is not None:
        return tuple(wanted)
    share = min(1.0, free_bytes * _SHARE_OF_FREE_MEMORY / wanted_bytes, MAX_PAGES / wanted_in_all)
    pages = tuple(int(share * pages) for pages in wanted)
    if min(pages) < 1:
        page_bytes = sum(spec.page_bytes for spec in specs)
        budget = f"{_SHARE_OF_FREE_MEMORY:.0%} of {free_bytes:,} free bytes"
        raise StartUpError(f"no KV page fits into the memory: {budget}; a page takes {page_bytes:,} bytes", exit_code=1)
    return pages


def _wanted_pages(spec: CacheGroupSpec, demand: PoolDemand) -> int:
    tokens = demand.max_model_len
    if spec.window_tokens is not None:
        # Pages leave the window only once the step that passed them is acknowledged.
        tokens = min(tokens, spec.window_tokens + 2 * demand.max_step_tokens + spec.page_tokens)
    lanes = -(-demand.max_lanes // demand.num_partitions)
    return lanes * -(-tokens // spec.page_tokens)
