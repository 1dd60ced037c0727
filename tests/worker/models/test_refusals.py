"""What cannot be served is refused with one line that names the file, the field or tensor, and the value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.checkpoints import make_checkpoint, write_json
from safetensors.torch import load_file, save_file

from worker.checkpoint.config_fields import ModelRefused
from worker.models import LoadOptions, load_model


def refusal(directory: Path) -> str:
    with pytest.raises(ModelRefused) as caught:
        load_model(directory, LoadOptions(torch.float32, torch.device("cpu")))
    message = str(caught.value)
    assert "\n" not in message and str(directory) in message
    return message


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


def change_config(directory: Path, **fields: Any) -> Path:
    config = json.loads((directory / "config.json").read_text()) | fields
    write_json(directory / "config.json", {name: value for name, value in config.items() if value is not None})
    return directory


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 10**9}
FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"architectures": ["GPT2LMHeadModel"]}, "architectures is ['GPT2LMHeadModel']; expected one of LlamaForCausalLM"),
    ("llama", {"architectures": None}, "architectures is missing"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; expected a list of strings"),
    ("llama", {"hidden_size": None}, "hidden_size is missing"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0; expected a whole number of at least 1"),
    ("llama", {"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
    ("llama", {"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    ("llama", {"rms_norm_eps": -1}, "rms_norm_eps is -1; expected a number above 0"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; expected a number above 0"),
    ("llama", {"rope_theta": float("inf")}, "rope_theta is inf; expected a number above 0"),
    ("llama", {"rope_theta": 10**400}, "rope_theta is 1000"),
    ("llama", {"hidden_size": 2**54}, "hidden_size is 18014398509481984; expected a whole number of at least 1 and at most 2^53"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected true or false"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected 'silu'"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of num_attention_heads, which is 4"),
    ("llama", {"head_dim": 15}, "head_dim is 15; expected an even number"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type is 'dynamic'; expected one of default"),
    ("llama", {"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_scaling.type is 'su'"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
    ("llama", {"rope_theta": 1, "rope_scaling": YARN}, "rope_scaling and rope_theta give no frequencies: float division by zero"),
    ("llama", {"rope_scaling": YARN | {"factor": 1e300}}, "rope_scaling and rope_theta give no frequencies: "),
    ("llama", {"rope_scaling": YARN | {"beta_fast": 1e-320}}, "rope_scaling and rope_theta give no frequencies: "),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling is 'linear'; expected an object"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention is"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config.quant_method is 'gptq'"),
    ("qwen2", {"layer_types": ["sliding_attention", "full_attention"]}, "use_sliding_window is missing; expected true"),
    ("qwen2", {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 2}, "layer_types is ['chunked_attention'"),
    ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9; expected at most the 8 experts"),
    ("qwen3_moe", {"mlp_only_layers": "none"}, "mlp_only_layers is 'none'; expected a list of whole numbers"),
]


@pytest.mark.parametrize(("arch", "fields", "expected"), FIELDS, ids=[f"{arch}-{'-'.join(fields)}" for arch, fields, _ in FIELDS])
def test_mod_05_field(arch: str, fields: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert f"config.json: {expected}" in refusal(change_config(make_checkpoint(tmp_path, arch), **fields))


def test_missing_tensor(tmp_path: Path) -> None:
    directory = change_tensors(make_checkpoint(tmp_path, "llama"), lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "tensor model.layers.1.mlp.up_proj.weight is missing" in refusal(directory)


def test_far_too_many_layers(tmp_path: Path) -> None:
    directory = change_config(make_checkpoint(tmp_path, "llama"), num_hidden_layers=10**9)
    assert "tensor model.layers.999999999.input_layernorm.weight is missing" in refusal(directory)


def test_mod_01_untied_model_without_a_head(tmp_path: Path) -> None:
    directory = change_config(make_checkpoint(tmp_path, "llama"), tie_word_embeddings=False)
    assert "tensor lm_head.weight is missing" in refusal(directory)


def test_mod_01_tied_model_with_another_head(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    change_tensors(directory, lambda tensors: tensors.update({"lm_head.weight": torch.ones(1024, 64)}))
    assert "tie_word_embeddings is true, but tensor lm_head.weight differs from model.embed_tokens.weight" in refusal(directory)


def test_unexpected_shape(tmp_path: Path) -> None:
    directory = change_config(make_checkpoint(tmp_path, "qwen3"), num_key_value_heads=4)
    assert "tensor model.layers.0.self_attn.k_proj.weight has shape [32, 64]; config.json asks for [64, 64]" in refusal(directory)


def test_tensors_without_a_place(tmp_path: Path) -> None:
    directory = change_config(make_checkpoint(tmp_path, "llama", attention_bias=True), attention_bias=False)
    assert "the model has no place for tensor model.layers.0.self_attn.k_proj.bias and 7 more" in refusal(directory)


def test_integer_weights(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    change_tensors(directory, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    assert "tensor model.norm.weight has type torch.int8; expected a floating point type" in refusal(directory)


@pytest.mark.parametrize("size", [0, 5, 3000, -1])
def test_truncated_file(size: int, tmp_path: Path) -> None:
    weights = make_checkpoint(tmp_path, "llama") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    assert f"{weights}: truncated or corrupt" in refusal(tmp_path)


def test_corrupt_file(tmp_path: Path) -> None:
    weights = make_checkpoint(tmp_path, "llama") / "model.safetensors"
    weights.write_bytes(b"\xff" * 4096)
    assert f"{weights}: truncated or corrupt" in refusal(tmp_path)


def test_config_that_is_not_json(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, "llama") / "config.json").write_text("{")
    assert "config.json: not JSON" in refusal(tmp_path)


def test_config_that_is_no_object(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, "llama") / "config.json").write_text("[]")
    assert "config.json: holds no JSON object" in refusal(tmp_path)


def test_mod_04_no_such_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent") == f"{tmp_path / 'absent'}: no such directory"


def test_mod_04_file_instead_of_a_directory(tmp_path: Path) -> None:
    weights = make_checkpoint(tmp_path, "llama") / "model.safetensors"
    assert refusal(weights) == f"{weights}: not a directory"


def test_mod_04_path_that_cannot_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refusal(tmp_path / "loop").endswith("loop: Too many levels of symbolic links")
    assert refusal(tmp_path / ("long" * 100)).endswith("long: File name too long")


def test_mod_04_empty_directory(tmp_path: Path) -> None:
    assert "config.json: No such file or directory" in refusal(tmp_path)


def test_mod_04_no_weights(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, "llama") / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path)


@pytest.mark.parametrize("is_file", [True, False])
def test_mod_13_gguf_is_refused_with_the_way_out(tmp_path: Path, is_file: bool) -> None:
    file = make_checkpoint(tmp_path, "llama") / "model.gguf"
    (tmp_path / "model.safetensors").rename(file)
    message = refusal(file if is_file else tmp_path)
    assert message == f"{file}: GGUF is not supported, safetensors are needed; `pypto-serving convert` converts what it knows"


def test_pickle_only(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, "llama") / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "holds weights only as pickle (pytorch_model.bin)" in refusal(tmp_path)


def index(directory: Path, weight_map: dict[str, str]) -> Path:
    write_json(directory / "model.safetensors.index.json", {"weight_map": weight_map})
    return directory


def test_mod_02_index_names_a_missing_file(tmp_path: Path) -> None:
    directory = index(make_checkpoint(tmp_path, "llama"), {"model.norm.weight": "model-00001-of-00002.safetensors"})
    assert "model-00001-of-00002.safetensors: no such file" in refusal(directory)


def test_mod_02_index_names_a_tensor_that_its_file_lacks(tmp_path: Path) -> None:
    tensors = load_file(make_checkpoint(tmp_path, "llama") / "model.safetensors")
    directory = index(tmp_path, dict.fromkeys([*tensors, "extra"], "model.safetensors"))
    assert "model.safetensors: tensor extra is missing, which model.safetensors.index.json places there" in refusal(directory)


def test_mod_02_tensor_in_two_files(tmp_path: Path) -> None:
    tensors = load_file(make_checkpoint(tmp_path, "llama") / "model.safetensors")
    save_file({"model.norm.weight": torch.ones(64), "other": torch.ones(1)}, tmp_path / "second.safetensors")
    directory = index(tmp_path, dict.fromkeys(tensors, "model.safetensors") | {"other": "second.safetensors"})
    assert "second.safetensors: holds tensor model.norm.weight, which model.safetensors.index.json does not place there" in refusal(
        directory
    )


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_mod_02_index_without_a_weight_map(content: dict[str, Any], tmp_path: Path) -> None:
    write_json(make_checkpoint(tmp_path, "llama") / "model.safetensors.index.json", content)
    assert "model.safetensors.index.json: weight_map is missing or empty" in refusal(tmp_path)
