"""Qwen3-MoE: the attention of Qwen3, with experts in the layers that config.json chooses."""

from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ConfigFields
from worker.layers.feed_forward import FeedForwardShape, read_mlp_shape
from worker.layers.moe import read_moe_shape
from worker.models.decoder import Decoder
from worker.models.decoder_config import DecoderConfig, read_common_window, read_decoder_config, read_num_layers
from worker.models.decoder_loading import load_decoder
from worker.models.model import LoadOptions
from worker.models.qwen3 import read_normed_attention


def load(checkpoint: Checkpoint, options: LoadOptions) -> Decoder:
    """Load a model of this family."""
    return load_decoder(checkpoint, read_config(checkpoint.config), options)


def read_config(config: ConfigFields) -> DecoderConfig:
    """The architecture that config.json describes."""
    attention = read_normed_attention(config, default_head_dim=None)
    feed_forwards = _read_feed_forwards(config, read_num_layers(config))
    return read_decoder_config(config, attention, feed_forwards, [read_common_window(config)] * len(feed_forwards))


def _read_feed_forwards(config: ConfigFields, num_layers: int) -> list[FeedForwardShape]:
    """Every `decoder_sparse_step`-th layer has experts, but for those that `mlp_only_layers` lists."""
    dense_layers, step = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
    sparse = [layer not in dense_layers and (layer + 1) % step == 0 for layer in range(num_layers)]
    moe = read_moe_shape(config) if any(sparse) else None
    dense = read_mlp_shape(config)
    return [moe if is_sparse and moe else dense for is_sparse in sparse]
