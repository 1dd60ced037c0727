"""Builds a decoder from a checkpoint."""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.linear import PackedLinear
from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.error import ModelRefused
from worker.checkpoint.weights import Weights
from worker.layers.attention import AttentionPlace, load_attention
from worker.models.decoder import Decoder, DecoderEnds, DecoderLayer
from worker.models.decoder_config import DecoderConfig
from worker.models.model import Placement

_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def load_decoder(checkpoint: Checkpoint, config: DecoderConfig, placement: Placement) -> Decoder:
    """Load the model layer by layer; the files stay mapped only until then."""
    config = replace(config, rope=config.rope.limited(placement.max_positions))
    weights = Weights(checkpoint, placement.dtype, placement.device, placement.progress)
    layers = _load_layers(weights, config)
    ends = _load_ends(weights, config)
    weights.refuse_unread()
    return Decoder(config, placement, layers, ends)


def _load_layers(weights: Weights, config: DecoderConfig) -> list[DecoderLayer]:
    table, groups = config.rope.table(weights.device), config.distinct_windows
    places = {window: AttentionPlace(table, groups.index(window), window or 0) for window in groups}
    return [_load_layer(weights, config, layer, places[window]) for layer, window in enumerate(config.windows)]


def _load_layer(weights: Weights, config: DecoderConfig, layer: int, place: AttentionPlace) -> DecoderLayer:
    prefix = f"model.layers.{layer}."
    return DecoderLayer(
        attention_norm=weights.tensor(prefix + "input_layernorm.weight", config.hidden_size),
        attention=load_attention(weights, prefix + "self_attn.", config.attention, place),
        feed_forward_norm=weights.tensor(prefix + "post_attention_layernorm.weight", config.hidden_size),
        feed_forward=config.feed_forwards[layer].load(weights, prefix + "mlp."),
    )


def _load_ends(weights: Weights, config: DecoderConfig) -> DecoderEnds:
    embedding = weights.tensor(_EMBEDDING, config.vocab_size, config.hidden_size)
    norm = weights.tensor(_NORM, config.hidden_size)
    return DecoderEnds(embedding, norm, PackedLinear(_load_head(weights, config, embedding), None))


def _load_head(weights: Weights, config: DecoderConfig, embedding: Tensor) -> Tensor:
    """The head's matrix; a tied checkpoint may store a copy of it, which has to be one."""
    if config.tied_head and _HEAD not in weights.checkpoint:
        return embedding
    head = weights.tensor(_HEAD, config.vocab_size, config.hidden_size)
    if config.tied_head and not torch.equal(head, embedding):
        path = weights.checkpoint.config.path
        raise ModelRefused(f"{path}: tie_word_embeddings is true, but tensor {_HEAD} differs from {_EMBEDDING}")
    return embedding if config.tied_head else head
