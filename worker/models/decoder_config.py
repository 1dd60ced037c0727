"""The architecture of a decoder, as its family reads it from config.json."""

from dataclasses import dataclass

import torch

from worker.checkpoint.config_fields import ConfigFields
from worker.kv_cache import CacheGroupSpec
from worker.layers.attention import AttentionShape
from worker.layers.feed_forward import FeedForwardShape
from worker.layers.rope import Rope, read_rope

_DEFAULT_NORM_EPS = 1e-6
_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEFAULT_WINDOW, _DEFAULT_FULL_LAYERS = 4096, 28


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
        """How many feed-forward parts, and as many attention layers."""
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
    """What every norm adds to the mean square; the default is that of transformers."""
    return config.number("rms_norm_eps", _DEFAULT_NORM_EPS)


def read_num_layers(config: ConfigFields) -> int:
    """How many layers config.json asks for; the checkpoint may have others."""
    return config.integer("num_hidden_layers")


def read_layer_windows(config: ConfigFields, num_layers: int) -> list[int | None]:
    """The window of every layer: by `layer_types` where given, else of all layers from `max_window_layers` on."""
    if not config.flag("use_sliding_window", default=False):
        if _SLIDING in config.texts("layer_types"):
            raise config.refusal("use_sliding_window", f"true, as layer_types holds {_SLIDING!r}")
        return [None] * num_layers
    window = config.integer("sliding_window", _DEFAULT_WINDOW)
    return [window if kind == _SLIDING else None for kind in _read_layer_types(config, num_layers)]


def read_common_window(config: ConfigFields) -> int | None:
    """The window of a family in which it holds for all layers alike."""
    return config.integer("sliding_window", _DEFAULT_WINDOW) if config.flag("use_sliding_window", default=False) else None


def _read_layer_types(config: ConfigFields, num_layers: int) -> list[str]:
    kinds = config.texts("layer_types")
    if not kinds:
        num_full = min(num_layers, config.integer("max_window_layers", _DEFAULT_FULL_LAYERS, minimum=0))
        return [_FULL] * num_full + [_SLIDING] * (num_layers - num_full)
    if len(kinds) != num_layers or set(kinds) - {_FULL, _SLIDING}:
        raise config.refusal("layer_types", f"{num_layers} entries of {_FULL!r} or {_SLIDING!r}")
    return kinds
