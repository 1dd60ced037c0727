"""A GGUF file of our own making comes back as the checkpoint that it was made from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from harness.checkpoints import TinyCheckpoint
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from worker.gguf_conversion import UnsupportedGguf, convert_gguf

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}
HEADS = {"attn_q": 4, "attn_k": 2}


def write_gguf(source: Path, file: Path, pre_tokenizer: str = "smollm") -> Path:
    """The tiny Llama checkpoint in `source` as GGUF, with the rows of query and key heads in llama.cpp's order."""
    writer = GGUFWriter(file, "llama")
    write_fields(writer, json.loads((source / "config.json").read_text()))
    write_vocabulary(writer, json.loads((source / "tokenizer.json").read_text()), pre_tokenizer)
    for name, tensor in load_file(source / "model.safetensors").items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        heads = HEADS.get(name.split(".")[-2])
        values = tensor.float().numpy()
        writer.add_tensor(name, values if heads is None else interleave(values, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    return np.ascontiguousarray(values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape))


def write_fields(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def write_vocabulary(writer: GGUFWriter, tokenizer: dict[str, Any], pre_tokenizer: str) -> None:
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(vocabulary)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages }}")


@pytest.fixture
def converted(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Path:
    convert_gguf(write_gguf(tiny_checkpoint("llama"), tmp_path / "model.gguf"), tmp_path, torch.float32)
    return tmp_path


def test_weights_come_back(converted: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    tensors, expected = (load_file(directory / "model.safetensors") for directory in (converted, tiny_checkpoint("llama")))
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_config_comes_back(converted: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    config, expected = (json.loads((directory / "config.json").read_text()) for directory in (converted, tiny_checkpoint("llama")))
    assert {name: config[name] for name in expected} == expected


def test_digits_are_split_one_by_one(converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    tokens = tokenizer.encode("  7 12\n\n\n1<|im_end|>").tokens
    assert [token for token in tokens if token.strip("ĠĊ")] == ["7", "1", "2", "1", "<|im_end|>"]


def test_tokenizer_keeps_its_special_tokens_and_template(converted: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(converted)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.chat_template) == (1, 2, "{{ messages }}")
    assert tokenizer.decode(tokenizer.encode("Grüße 🙂<|im_end|>"), skip_special_tokens=True) == "Grüße 🙂"


def test_unknown_pre_tokenizer_is_refused(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    file = write_gguf(tiny_checkpoint("llama"), tmp_path / "model.gguf", pre_tokenizer="other")
    with pytest.raises(UnsupportedGguf, match=r"tokenizer\.ggml\.pre is 'other'; supported: smollm"):
        convert_gguf(file, tmp_path)


def test_file_without_a_padding_id_is_refused(tiny_checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GGUFWriter, "add_pad_token_id", lambda *_: None)
    file = write_gguf(tiny_checkpoint("llama"), tmp_path / "model.gguf")
    with pytest.raises(UnsupportedGguf, match=r"tokenizer\.ggml\.padding_token_id is missing"):
        convert_gguf(file, tmp_path)


@pytest.mark.slow
def test_demo_model_equals_the_conversion_of_transformers(demo_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    from scripts.prepare_demo_model import find_gguf

    gguf = find_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).state_dict()
    ours = load_file(demo_model / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name].to(torch.bfloat16)) for name in ours)
