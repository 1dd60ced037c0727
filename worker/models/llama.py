"""Llama: attention and feed-forward with optional biases on all projections."""

from dataclasses import replace

from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ConfigFields
from worker.layers.attention import read_attention_shape
from worker.layers.feed_forward import read_mlp_shape
from worker.models.decoder import Decoder
from worker.models.decoder_config import DecoderConfig, read_decoder_config, read_num_layers
from worker.models.decoder_loading import load_decoder
from worker.models.model import LoadOptions


def load(checkpoint: Checkpoint, options: LoadOptions) -> Decoder:
    """Load a model of this family."""
    return load_decoder(checkpoint, read_config(checkpoint.config), options)


def read_config(config: ConfigFields) -> DecoderConfig:
    """The architecture that config.json describes."""
    num_layers = read_num_layers(config)
    bias = config.flag("attention_bias", default=False)
    attention = replace(read_attention_shape(config), qkv_bias=bias, output_bias=bias)
    mlp = read_mlp_shape(config, bias=config.flag("mlp_bias", default=False))
    return read_decoder_config(config, attention, [mlp] * num_layers, [None] * num_layers)
