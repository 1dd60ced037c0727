"""Qwen3: a norm on every query and key head, and heads whose size config.json states."""

from dataclasses import replace

from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ConfigFields
from worker.layers.attention import AttentionShape, read_attention_shape
from worker.layers.feed_forward import read_mlp_shape
from worker.models.decoder import Decoder
from worker.models.decoder_config import DecoderConfig, read_decoder_config, read_layer_windows, read_norm_eps, read_num_layers
from worker.models.decoder_loading import load_decoder
from worker.models.model import LoadOptions

_DEFAULT_HEAD_DIM = 128


def load(checkpoint: Checkpoint, options: LoadOptions) -> Decoder:
    """Load a model of this family."""
    return load_decoder(checkpoint, read_config(checkpoint.config), options)


def read_config(config: ConfigFields) -> DecoderConfig:
    """The architecture that config.json describes."""
    num_layers = read_num_layers(config)
    attention = read_normed_attention(config, _DEFAULT_HEAD_DIM)
    return read_decoder_config(config, attention, [read_mlp_shape(config)] * num_layers, read_layer_windows(config, num_layers))


def read_normed_attention(config: ConfigFields, default_head_dim: int | None) -> AttentionShape:
    """Attention with a norm on query and key heads, and optional biases on all projections."""
    bias = config.flag("attention_bias", default=False)
    shape = read_attention_shape(config, default_head_dim)
    return replace(shape, qkv_bias=bias, output_bias=bias, norm_eps=read_norm_eps(config))
