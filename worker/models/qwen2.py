"""Qwen2: biases on the query, key and value projections, and on nothing else."""

from dataclasses import replace

from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ConfigFields
from worker.layers.attention import read_attention_shape
from worker.layers.feed_forward import read_mlp_shape
from worker.models.decoder import Decoder
from worker.models.decoder_config import DecoderConfig, read_decoder_config, read_layer_windows, read_num_layers
from worker.models.decoder_loading import load_decoder
from worker.models.model import LoadOptions


def load(checkpoint: Checkpoint, options: LoadOptions) -> Decoder:
    """Load a model of this family."""
    return load_decoder(checkpoint, read_config(checkpoint.config), options)


def read_config(config: ConfigFields) -> DecoderConfig:
    """The architecture that config.json describes."""
    num_layers = read_num_layers(config)
    attention = replace(read_attention_shape(config), qkv_bias=True)
    return read_decoder_config(config, attention, [read_mlp_shape(config)] * num_layers, read_layer_windows(config, num_layers))
