"""Builds a decoder from a checkpoint."""

from dataclasses import replace
from functools import partial

import torch

from kernels import ops
from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ModelRefused
from worker.checkpoint.quantization import read_stored_quantization
from worker.checkpoint.weights import Weights
from worker.layers.attention import load_attention
from worker.models.decoder import Decoder, DecoderEnds, DecoderLayer
from worker.models.decoder_config import DecoderConfig
from worker.models.model import LoadOptions

_EMBEDDING, _HEAD, _NORM = "model.embed_tokens", "lm_head", "model.norm.weight"


def load_decoder(checkpoint: Checkpoint, config: DecoderConfig, options: LoadOptions) -> Decoder:
    """Load the model layer by layer; the files stay mapped only until then."""
    if options.max_positions is not None and options.max_positions > config.rope.max_positions:
        supported = f"{checkpoint.config.path} allows {config.rope.max_positions}: lower it, or leave it out"
        raise ModelRefused(f"--max-model-len {options.max_positions}: {supported}")
    config = replace(config, rope=config.rope.limited(options.max_positions))
    weights = _open_weights(checkpoint, options)
    ends = _load_ends(weights, config)  # first: a matrix this large and its copy are to lie in memory while not much else does
    layers = _load_layers(weights, config)
    weights.refuse_unread()
    checkpoint.close()
    return Decoder(config, options, layers, ends, weights.quantization)


def _open_weights(checkpoint: Checkpoint, options: LoadOptions) -> Weights:
    stored, quantizer = read_stored_quantization(checkpoint.config), options.quantizer
    path, device = checkpoint.config.path, options.device.type
    if stored and quantizer:
        raise ModelRefused(f"--quantize {quantizer.name}: {path} says that the model is quantized already, to {stored.name}")
    if stored and device != "cpu":
        raise ModelRefused(f"{path}: quantization_config: {stored.name} is for --device cpu; this is {device}")
    return Weights(checkpoint, options.dtype, options.device, options.progress, quantizer, stored)


def _load_layers(weights: Weights, config: DecoderConfig) -> list[DecoderLayer]:
    table, groups = config.rope.table(weights.device), config.distinct_windows
    layers = []
    for index, (window, feed_forward) in enumerate(zip(config.windows, config.feed_forwards, strict=True)):
        prefix = f"model.layers.{index}."
        layers.append(
            DecoderLayer(
                attention_norm=weights.tensor(prefix + "input_layernorm.weight", config.hidden_size),
                attention=load_attention(weights, prefix + "self_attn.", config.attention, table, groups.index(window), window or 0),
                feed_forward_norm=weights.tensor(prefix + "post_attention_layernorm.weight", config.hidden_size),
                feed_forward=feed_forward.load(weights, prefix + "mlp."),
            )
        )
    return layers


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
