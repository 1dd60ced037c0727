"""Converts a Llama model in a GGUF file to a Hugging Face model directory.

Weights are dequantized. The tokenizer is rebuilt from the file's vocabulary, merges and the name of its pre-tokenizer, which decides
how digits are split.

`pypto-serving convert` runs python -m worker.gguf_conversion FILE DIR DTYPE: a JSON line for each tensor, and DIR when it is
complete.
"""

import json
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, TokenType
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from pypto_serving.process.interrupts import INTERRUPTED

_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


class UnsupportedGguf(Exception):
    """A GGUF file that this conversion does not cover; the message names the field and its value."""


class _Fields(dict[str, Any]):
    """Fields of a GGUF file by their names."""

    def __missing__(self, name: str) -> Any:
        raise UnsupportedGguf(f"{name} is missing")


#: Takes the name of a tensor that is converted, and how many there are.
Told = Callable[[str, int], object]


def convert_gguf(file: Path, directory: Path, dtype: torch.dtype = torch.bfloat16, told: Told = lambda name, count: None) -> None:
    """Write config, weights of type `dtype`, tokenizer and chat template of the GGUF `file` into the existing `directory`."""
    reader = GGUFReader(file)
    fields = _Fields({name: field.contents() for name, field in reader.fields.items()})
    _require(fields, "general.architecture", {"llama"})
    _require(fields, "tokenizer.ggml.model", {"gpt2"})
    _require(fields, "tokenizer.ggml.pre", set(_PRE_TOKENIZERS))
    save_file(_weights(reader, fields, dtype, told), directory / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(fields).save(str(directory / "tokenizer.json"))
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(directory / "config.json", _config(fields, dtype, tied))
    _write_json(directory / "generation_config.json", _special_ids(fields))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(fields))


def _require(fields: dict[str, Any], name: str, supported: set[str]) -> None:
    if fields.get(name) not in supported:
        raise UnsupportedGguf(f"{name} is {fields.get(name)!r}; supported: {', '.join(sorted(supported))}")


def _config(fields: dict[str, Any], dtype: torch.dtype, tied: bool) -> dict[str, Any]:
    num_heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // num_heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": _shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(fields["llama.rope.freq_base"]),
        "tie_word_embeddings": tied,
        **_special_ids(fields),
    }


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF stores 1e-5 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    names = {"bos": "bos", "eos": "eos", "padding": "pad"}
    return {f"{short}_token_id": fields[f"tokenizer.ggml.{name}_token_id"] for name, short in names.items()}


def _weights(reader: GGUFReader, fields: dict[str, Any], dtype: torch.dtype, told: Told) -> dict[str, Tensor]:
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        told(tensor.name, len(reader.tensors))
        name, values = _weight(tensor, heads, dtype)
        weights[name] = values
    return weights


def _weight(tensor: ReaderTensor, heads: dict[str, int], dtype: torch.dtype) -> tuple[str, Tensor]:
    """Name and values as Hugging Face's Llama stores them."""
    values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    if tensor.name in _OUTER_TENSORS:
        return _OUTER_TENSORS[tensor.name], values.to(dtype)
    match = _LAYER_TENSOR.fullmatch(tensor.name)
    if match is None or match[2] not in _MODULES:
        raise UnsupportedGguf(f"tensor {tensor.name} has no place in a Llama model")
    if match[2] in heads:
        values = _to_half_split(values, heads[match[2]])
    return f"model.layers.{match[1]}.{_MODULES[match[2]]}.weight", values.to(dtype)


def _to_half_split(values: Tensor, num_heads: int) -> Tensor:
    """Rows of a projection [heads * head_dim, hidden]: GGUF rotates neighbours, Hugging Face the two halves of a head."""
    pairs = values.reshape(num_heads, -1, 2, values.shape[1])
    return pairs.transpose(1, 2).reshape(values.shape).contiguous()


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[fields["tokenizer.ggml.pre"]]()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    )
    return tokenizer


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{short}_token": tokens[fields[f"tokenizer.ggml.{name}_token_id"]] for name, short in names.items()},
        "chat_template": fields["tokenizer.chat_template"],
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Convert beside the directory and move the whole; returns the exit code: 2 for a file that cannot be converted, 1 for all else."""
    file, target, dtype = Path(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED))  # not without taking away what it has begun
    try:
        if target.exists():
            raise FileExistsError(0, "exists already; name a directory that does not", str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as work:
            made = Path(work) / target.name
            made.mkdir()
            convert_gguf(file, made, dtype, lambda name, count: print(json.dumps({"tensor": name, "count": count}), flush=True))
            made.rename(target)
    except OSError as error:
        print(f"error: {error.filename or file}: {error.strerror}", file=sys.stderr)
        return 1
    except (UnsupportedGguf, ValueError) as error:  # ValueError: what gguf says of a file that is none
        print(f"error: {file}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
