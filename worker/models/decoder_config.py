"""The architecture of a decoder, as its family reads it from config.json."""

from dataclasses import dataclass

import torch

from worker.cache.kv_cache import CacheGroupSpec
from worker.checkpoint.config_fields import ConfigFields
from worker.layers.attention import AttentionShape
from worker.layers.feed_forward import FeedForwardShape
from worker.layers.rope import Rope, read_rope

_DEFAULT_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything but the weights."""

    architecture: str
    vocab_size: int
    hidden_size: int
    norm_eps: float
    tied_head: bool  # the embedding is the head as well
    rope: Rope
    attention: AttentionShape
    feed_forwards: tuple[FeedForwardShape, ...]  # one per layer
    windows: tuple[int | None, ...]  # one per layer: tokens that a query sees; None: all

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.feed_forwards)

    @property
    def distinct_windows(self) -> list[int | None]:
        """One window per cache group; layers without a window come first."""
        return sorted(set(self.windows), key=lambda window: window or 0)

    def cache_groups(self, page_tokens: int, dtype: torch.dtype) -> tuple[CacheGroupSpec, ...]:
        """One cache group per distinct window."""
        return tuple(
            CacheGroupSpec(
                name="full" if window is None else f"window-{window}",
                layers=tuple(layer for layer, its_window in enumerate(self.windows) if its_window == window),
                page_tokens=page_tokens,
                num_kv_heads=self.attention.num_kv_heads,
                head_dim=self.attention.head_dim,
                dtype=dtype,
                window_tokens=window,
            )
            for window in self.distinct_windows
        )


def read_decoder_config(
    config: ConfigFields, attention: AttentionShape, feed_forwards: list[FeedForwardShape], windows: list[int | None]
) -> DecoderConfig:
    """The fields that all families share, joined with the parts that the family has chosen."""
    return DecoderConfig(
        architecture=config.texts("architectures")[0],
        vocab_size=config.integer("vocab_size"),
        hidden_size=attention.hidden_size,
        norm_eps=read_norm_eps(config),
        tied_head=config.flag("tie_word_embeddings", default=False),
        rope=read_rope(config, attention.head_dim),
        attention=attention,
        feed_forwards=tuple(feed_forwards),
        windows=tuple(windows),
    )


def read_norm_eps(config: ConfigFields) -> float:
    """Added to the mean square in every norm."""
    return config.number("rms_norm_eps", _DEFAULT_NORM_EPS)


def read_num_layers(config: ConfigFields) -> int:
    """Number of layers."""
    return config.integer("num_hidden_layers")
