"""What the runner knows of a model, whichever family it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.quantized import Quantizer
from worker.batch import Batch, Hidden
from worker.kv_cache import CacheGroupSpec, KVCache
from worker.npu_software import NpuKernels


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is to be loaded."""

    dtype: torch.dtype
    device: torch.device
    page_tokens: int = 16
    max_positions: int | None = None  # most tokens of a sequence; None: what the model supports
    progress: Callable[[], None] = lambda: None  # called after every tensor loaded and layer computed
    expect_tensors: Callable[[int], None] = lambda count: None  # called with the number of tensors, before the first one
    quantizer: Quantizer | None = None  # of matrices that the checkpoint has in larger types; on a CPU only
    npu_kernels: NpuKernels | None = None  # which of the two sets serves an NPU; None on another device


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Architecture and sizes of a model."""

    architecture: str
    vocab_size: int  # rows of the embedding
    max_model_len: int  # most tokens of a sequence
    num_layers: int


class ForwardModel(Protocol):
    """What computes batches: all that a runner needs of a model."""

    def forward(self, batch: Batch, cache: KVCache) -> Hidden:
        """Write the keys and values of all rows, and return the wanted ones, and which were finite.

        A row is the same, bit for bit, whatever else is in the batch and however the tokens before it were cut into steps.
        """

    def logits(self, rows: Tensor) -> Tensor:
        """Some rows [n, hidden] that `forward` returned to logits [n, vocab] float32, each by itself."""


class Model(ForwardModel, Protocol):
    """A loaded model. Not thread-safe: one thread owns it, and the device."""

    progress: Callable[[], None]  # called after every layer, to be replaced at will

    @property
    def description(self) -> ModelDescription:
        """Its architecture and sizes."""

    @property
    def cache_groups(self) -> tuple[CacheGroupSpec, ...]:
        """Cache groups, in the order in which a batch lists its page tables."""

    @property
    def is_capturable(self) -> bool:
        """Whether `forward` runs without synchronizing with the host, so that it can be captured into a graph."""

    @property
    def numerics_id(self) -> str:
        """Identity of everything that decides the bits of a result, the weights apart."""

    def allocate_cache(self, num_pages: Sequence[int], num_partitions: int = 1) -> KVCache:
        """A zero-filled cache with `num_pages[group]` pages in each partition."""
