"""Tiny checkpoints with random weights and a real tokenizer, made in well under a second and without transformers.

Weights depend only on the seed and the tensor's name: the same on every machine. The files look like a hub's: config.json,
generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json with a chat template.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics  # half a megabyte of English and code that every CPython carries
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TinyCheckpoint = Callable[..., Path]  # the fixture tiny_checkpoint
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
QWEN3_0_6B = {  # its shape: fields of config.json
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
PAD_TOKEN, EOS_TOKEN = "<|endoftext|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_VOCAB_SIZE = 1024
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # Qwen's


def make_checkpoint(directory: Path, arch: str, dtype: str = "float32", seed: int = 0, **config: Any) -> Path:
    """Write a checkpoint of family `arch` (a key of ARCHITECTURES) into `directory`; `config` overrides fields of config.json.

    A field given as None is left out of config.json, and the shapes then follow the family's default.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fields = {**tiny_config(arch), "dtype": dtype, **config}
    tensors = random_tensors(tensor_shapes(fields), getattr(torch, dtype), seed)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    write_json(directory / "config.json", {name: value for name, value in fields.items() if value is not None})
    write_json(directory / "generation_config.json", {"eos_token_id": fields["eos_token_id"], "pad_token_id": fields["pad_token_id"]})
    write_tokenizer(directory)
    return directory


def fuse_experts(directory: Path) -> None:
    """Store the experts of a checkpoint of family qwen3_moe as [experts, rows, columns], as some tools do."""
    tensors = load_file(directory / "model.safetensors")
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            torch.stack([tensors.pop(f"{prefix}{expert}.{part}_proj.weight") for expert in range(8)]) for part in ("gate", "up", "down")
        )
        tensors |= {prefix + "gate_up_proj": torch.cat((gate, up), 1), prefix + "down_proj": down}
    save_file(tensors, directory / "model.safetensors")


def tiny_config(arch: str) -> dict[str, Any]:
    """Fields of config.json of the tiny model of a family."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": _VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": arch != "qwen3_moe",
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index(EOS_TOKEN),
        "pad_token_id": SPECIAL_TOKENS.index(PAD_TOKEN),
    }
    if arch == "qwen3_moe":
        config |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a checkpoint with this config.json holds."""
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + "input_layernorm.weight": (hidden,), prefix + "post_attention_layernorm.weight": (hidden,)}
        shapes |= _attention_shapes(config, prefix + "self_attn.")
        shapes |= _feed_forward_shapes(config, layer, prefix + "mlp.")
    return shapes


def _attention_shapes(config: dict[str, Any], prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config["head_dim"] or hidden // heads
    kv_rows = (config["num_key_value_heads"] or heads) * head_dim
    rows = {"q_proj": heads * head_dim, "k_proj": kv_rows, "v_proj": kv_rows, "o_proj": hidden}
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}{name}.weight": (size, hidden) for name, size in rows.items()}
    shapes[prefix + "o_proj.weight"] = (hidden, heads * head_dim)
    biased = ("q_proj", "k_proj", "v_proj") if config["model_type"] == "qwen2" else rows if config.get("attention_bias") else ()
    shapes |= {f"{prefix}{name}.bias": (rows[name],) for name in biased}
    if config["model_type"].startswith("qwen3"):
        shapes |= {prefix + "q_norm.weight": (head_dim,), prefix + "k_norm.weight": (head_dim,)}
    return shapes


def _feed_forward_shapes(config: dict[str, Any], layer: int, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, num_experts = config["hidden_size"], config.get("num_experts", 0)
    if num_experts and layer not in config["mlp_only_layers"] and (layer + 1) % config["decoder_sparse_step"] == 0:
        shapes: dict[str, tuple[int, ...]] = {prefix + "gate.weight": (num_experts, hidden)}
        for expert in range(num_experts):
            shapes |= _mlp_shapes(hidden, config["moe_intermediate_size"], f"{prefix}experts.{expert}.")
        return shapes
    shapes = _mlp_shapes(hidden, config["intermediate_size"], prefix)
    if config.get("mlp_bias"):
        shapes |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}
    return shapes


def _mlp_shapes(hidden: int, inner: int, prefix: str) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "gate_proj.weight": (inner, hidden),
        prefix + "up_proj.weight": (inner, hidden),
        prefix + "down_proj.weight": (hidden, inner),
    }


def random_tensors(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Random tensors: matrices with deviation 0.1, norms near 1, biases near 0."""
    return {name: _random_tensor(name, shape, seed).to(dtype) for name, shape in shapes.items()}


def _random_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    values = torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")))
    if len(shape) > 1:
        return 0.1 * values
    return (1.0 if "norm" in name else 0.0) + 0.02 * values


def write_tokenizer(directory: Path) -> None:
    """Write the tokenizer of all tiny checkpoints: byte-level BPE with 1,024 ids, the first of them special."""
    (directory / "tokenizer.json").write_text(_tokenizer_json())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    write_json(directory / "tokenizer_config.json", config)


@functools.cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_VOCAB_SIZE, special_tokens=SPECIAL_TOKENS, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator((topics[name] for name in sorted(topics)), trainer)
    assert tokenizer.get_vocab_size() == _VOCAB_SIZE
    return tokenizer.to_str()


def write_json(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON file the way hubs do."""
    path.write_text(json.dumps(fields, indent=2) + "\n")
