"""A Qwen3 checkpoint as llama.cpp reads it: weights in bfloat16 and without a vocabulary, for token ids only."""

import json
from pathlib import Path

import gguf
import torch
from safetensors import safe_open


def write_gguf(model: Path, target: Path) -> Path:
    """Write the weights of a `qwen3` checkpoint in one safetensors file into `target`, unless it is there; returns it."""
    if not target.exists():
        config = json.loads((model / "config.json").read_text())
        partial = target.with_suffix(".partial")
        writer = gguf.GGUFWriter(partial, "qwen3")
        _write_config(writer, config)
        _write_tensors(writer, model, config["num_hidden_layers"])
        writer.close()
        partial.rename(target)
    return target


def _write_config(writer: gguf.GGUFWriter, config: dict[str, int]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _write_tensors(writer: gguf.GGUFWriter, model: Path, num_layers: int) -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, num_layers)
    with safe_open(model / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - no mapping
            target = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert target is not None, name
            tensor = tensors.get_tensor(name)
            if tensor.dim() > 1:
                writer.add_tensor(target, tensor.view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
            else:
                writer.add_tensor(target, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
