"""The decoder that Llama and its relatives share: pre-norm layers of attention and feed-forward over one residual stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import ops
from worker.batch import Batch, Hidden
from worker.checkpoint.weights import Linear
from worker.kv_cache import KVCache, allocate_cache
from worker.layers.attention import Attention
from worker.layers.feed_forward import FeedForward
from worker.models.decoder_config import DecoderConfig
from worker.models.model import LoadOptions, ModelDescription
from worker.numerics import numerics_id


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A layer, with the norms that precede its parts, each [hidden]."""

    attention_norm: Tensor
    attention: Attention
    feed_forward_norm: Tensor
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class DecoderEnds:
    """What comes before the first and after the last layer."""

    embed: Callable[[Tensor], Tensor]  # ids [T] -> rows [T, hidden]
    norm: Tensor  # [hidden]
    head: Linear


class Decoder:
    """A loaded decoder; implements Model."""

    def __init__(
        self, config: DecoderConfig, options: LoadOptions, layers: Sequence[DecoderLayer], ends: DecoderEnds, quantization: str
    ) -> None:
        self.description = ModelDescription(config.architecture, config.vocab_size, config.rope.max_positions, config.num_layers)
        self.cache_groups = config.cache_groups(options.page_tokens, options.dtype)
        self.progress = options.progress
        self.is_capturable = all(layer.feed_forward.is_capturable for layer in layers)
        self.numerics_id = numerics_id(options.dtype, options.device, quantization, options.npu_kernels)
        self._device = options.device
        self._eps = config.norm_eps
        self._ends = ends
        self._layers = tuple(layers)
        # A layer ends with the norm of the next one, which comes at no cost with the addition to the residual stream.
        self._next_norms = (*(layer.attention_norm for layer in layers[1:]), ends.norm)

    def allocate_cache(self, num_pages: Sequence[int], num_partitions: int = 1) -> KVCache:
        """A zero-filled cache with `num_pages[group]` pages in each partition."""
        return allocate_cache(self.cache_groups, num_pages, num_partitions, self._device)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KVCache) -> Hidden:
        """All layers over a batch, as ForwardModel.forward says."""
        residual = self._ends.embed(batch.token_ids)
        rows = ops.rms_norm(residual, self._layers[0].attention_norm, self._eps)
        for layer, next_norm, keys, values in zip(self._layers, self._next_norms, cache.keys, cache.values, strict=True):
            update = layer.attention(rows, batch, keys, values)
            rows, residual = ops.add_rms_norm(update, residual, layer.feed_forward_norm, self._eps)
            rows, residual = ops.add_rms_norm(layer.feed_forward(rows), residual, next_norm, self._eps)
            self.progress()
        return Hidden(rows.index_select(0, batch.logit_rows), ops.finite_rows(residual))

    @torch.inference_mode()
    def logits(self, rows: Tensor) -> Tensor:
        """The head over some rows, as ForwardModel.logits says."""
        return self._ends.head.float32(rows)
