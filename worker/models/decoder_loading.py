"""Builds a decoder from a checkpoint."""

from dataclasses import replace
from functools import partial

import torch

from kernels import ops
from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.error import ModelRefused
from worker.checkpoint.quantization import read_stored_quantization
from worker.checkpoint.weights import Weights
from worker.layers.attention import AttentionPlace, load_attention
from worker.models.decoder import Decoder, DecoderEnds, DecoderLayer
from worker.models.decoder_config import DecoderConfig
from worker.models.model import Placement

_EMBEDDING, _HEAD, _NORM = "model.embed_tokens", "lm_head", "model.norm.weight"


def load_decoder(checkpoint: Checkpoint, config: DecoderConfig, placement: Placement) -> Decoder:
    """Load the model layer by layer; the files stay mapped only until then."""
    config = replace(config, rope=config.rope.limited(placement.max_positions))
    weights = _open_weights(checkpoint, placement)
    ends = _load_ends(weights, config)  # first: a matrix this large and its copy are to lie in memory while not much else does
    layers = _load_layers(weights, config)
    weights.refuse_unread()
    checkpoint.close()
    return Decoder(config, placement, layers, ends, weights.quantization)


def _open_weights(checkpoint: Checkpoint, placement: Placement) -> Weights:
    stored, quantizer = read_stored_quantization(checkpoint.config), placement.quantizer
    path, device = checkpoint.config.path, placement.device.type
    if stored and quantizer:
        raise ModelRefused(f"--quantize {quantizer.name}: {path} says that the model is quantized already, to {stored.name}")
    if stored and device != "cpu":
        raise ModelRefused(f"{path}: quantization_config: {stored.name} is for --device cpu; this is {device}")
    return Weights(checkpoint, placement.dtype, placement.device, placement.progress, quantizer, stored)


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
    """A tied head is kept once: look-ups take rows of what products take."""
    norm = weights.tensor(_NORM, config.hidden_size)
    if config.tied_head:
        _require_tied(weights, config)
        head = weights.head(_EMBEDDING, config.vocab_size, config.hidden_size)
        return DecoderEnds(head.rows, norm, head)
    embedding = weights.tensor(f"{_EMBEDDING}.weight", config.vocab_size, config.hidden_size)
    return DecoderEnds(partial(ops.embedding, table=embedding), norm, weights.head(_HEAD, config.vocab_size, config.hidden_size))


def _require_tied(weights: Weights, config: DecoderConfig) -> None:
    """A tied checkpoint may store its embedding once more as the head: it has to be a copy."""
    checkpoint, shape = weights.checkpoint, (config.vocab_size, config.hidden_size)
    head, embedding = f"{_HEAD}.weight", f"{_EMBEDDING}.weight"
    if head in checkpoint and not torch.equal(checkpoint.tensor(head, shape), checkpoint.tensor(embedding, shape)):
        path = checkpoint.config.path
        raise ModelRefused(f"{path}: tie_word_embeddings is true, but tensor {head} differs from {embedding}")
