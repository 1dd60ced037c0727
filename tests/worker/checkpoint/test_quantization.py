"""What is read of checkpoints in the layout of compressed-tensors."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.checkpoints import make_checkpoint, write_json
from harness.quantized_checkpoints import quantization_config, quantize_checkpoint
from safetensors.torch import load_file, save_file

from kernels.quantized import Int4Weight, Int8Weight
from worker.checkpoint.checkpoint import Checkpoint
from worker.checkpoint.config_fields import ConfigFields, ModelRefused
from worker.checkpoint.quantization import StoredQuantization, read_stored_quantization

CONFIG = Path("config.json")


def read(config: dict[str, Any]) -> StoredQuantization | None:
    return read_stored_quantization(ConfigFields(CONFIG, {"quantization_config": config}))


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ModelRefused) as caught:
        read(config)
    return str(caught.value).removeprefix("config.json: quantization_config.")


def dequantized(weight: Int8Weight | Int4Weight) -> torch.Tensor:
    if isinstance(weight, Int8Weight):
        return weight.levels * weight.scales.float()[:, None]
    zeros = torch.full_like(weight.scales, 8) if weight.zeros is None else weight.zeros
    groups = weight.levels.unflatten(1, (weight.scales.shape[1], -1))
    return ((groups - zeros.float()[:, :, None]) * weight.scales.float()[:, :, None]).flatten(1)


@pytest.mark.parametrize(("bits", "group", "symmetric"), [(8, 0, True), (4, 32, True), (4, 32, False), (4, 16, False)])
def test_matrices_come_back_as_they_were_stored(tmp_path: Path, bits: int, group: int, symmetric: bool) -> None:
    expected = quantize_checkpoint(make_checkpoint(tmp_path, "qwen3", num_key_value_heads=1), bits, group, symmetric)
    checkpoint = Checkpoint(tmp_path)
    stored = read_stored_quantization(checkpoint.config)
    assert stored is not None
    for name, weight in expected.items():
        module = name.removesuffix(".weight")
        assert stored.covers(module)
        assert torch.equal(dequantized(stored.read(checkpoint, module, *weight.shape)), weight), name
    assert not any("_proj" in name for name in checkpoint.unread)


def test_checkpoint_without_quantization() -> None:
    assert read_stored_quantization(ConfigFields(CONFIG, {"quantization_config": None})) is None


def test_embedding_is_no_linear_layer() -> None:
    stored = read(quantization_config(8))
    assert stored is not None
    assert not stored.covers("model.embed_tokens")


def test_modules_are_chosen_by_targets_and_ignore() -> None:
    config = quantization_config(8) | {"ignore": ["lm_head", "re:.*[.]mlp[.]gate$", "model.layers.1.mlp.up_proj"]}
    config["config_groups"]["group_0"]["targets"] = ["re:model[.]layers[.].*", "lm_head"]
    stored = read(config)
    assert stored is not None
    modules = ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", "model.layers.1.mlp.up_proj", "other.lm_head"]
    assert [stored.covers(module) for module in modules] == [False, False, True, False, False]


REFUSED: list[tuple[int, str, object, str]] = [
    (8, "quant_method", "gptq", "quant_method is 'gptq'; expected 'compressed-tensors'"),
    (8, "format", "float-quantized", "format is 'float-quantized'; expected 'int-quantized' or 'pack-quantized'"),
    (8, "quantization_status", "frozen", "quantization_status is 'frozen'; expected 'compressed' or nothing"),
    (8, "kv_cache_scheme", {"num_bits": 8}, "kv_cache_scheme is {'num_bits': 8}; expected left out, as it is not supported"),
    (8, "sparsity_config", {"format": "sparse-24"}, "sparsity_config is {'format': 'sparse-24'}; expected {} or nothing"),
    (8, "surprise", 1, "surprise is 1; expected left out"),
    (8, "ignore", ["re:("], "ignore is ['re:(']; expected regular expressions after re:, which 're:(' is not"),
    (8, "config_groups", {}, "config_groups is {}; expected one group"),
    (8, "config_groups.group_0.weights.num_bits", 4, "config_groups.group_0.weights.num_bits is 4; expected 8"),
    (8, "config_groups.group_0.weights.symmetric", False, "config_groups.group_0.weights.symmetric is False; expected True or nothing"),
    (8, "config_groups.group_0.weights.strategy", "tensor", "config_groups.group_0.weights.strategy is 'tensor'; expected 'channel'"),
    (8, "config_groups.group_0.input_activations.dynamic", False, "config_groups.group_0.input_activations.dynamic is False"),
    (8, "config_groups.group_0.input_activations", None, "config_groups.group_0.input_activations.num_bits is missing; expected 8"),
    (8, "config_groups.group_0.output_activations", {"num_bits": 8}, "config_groups.group_0.output_activations is {'num_bits': 8}"),
    (4, "config_groups.group_0.weights.num_bits", 8, "config_groups.group_0.weights.num_bits is 8; expected 4"),
    (4, "config_groups.group_0.weights.type", "float", "config_groups.group_0.weights.type is 'float'; expected 'int' or nothing"),
    (4, "config_groups.group_0.weights.strategy", "channel", "config_groups.group_0.weights.strategy is 'channel'; expected 'group'"),
    (4, "config_groups.group_0.weights.group_size", 20, "config_groups.group_0.weights.group_size is 20; expected a multiple of 8"),
    (4, "config_groups.group_0.weights.actorder", "group", "config_groups.group_0.weights.actorder is 'group'; expected 'static' or"),
    (4, "config_groups.group_0.input_activations", {"num_bits": 8}, "config_groups.group_0.input_activations is {'num_bits': 8}"),
]


@pytest.mark.parametrize(("bits", "field", "value", "message"), REFUSED)
def test_what_is_not_supported_is_named(bits: int, field: str, value: object, message: str) -> None:
    config = deepcopy(quantization_config(bits))
    section, names = config, field.split(".")
    for name in names[:-1]:
        section = section[name]
    section[names[-1]] = value
    assert refusal(config).startswith(message)


def test_group_that_does_not_divide_the_columns(tmp_path: Path) -> None:
    quantize_checkpoint(make_checkpoint(tmp_path, "llama"), 4, 32)
    checkpoint = Checkpoint(tmp_path)
    stored = read_stored_quantization(checkpoint.config)
    with pytest.raises(ModelRefused, match=r"groups of 32 inputs do not divide the 80 columns of model\.layers\.0\.mlp\.down_proj\.weight"):
        stored.read(checkpoint, "model.layers.0.mlp.down_proj", 64, 80)


def test_shape_that_contradicts_the_tensor(tmp_path: Path) -> None:
    quantize_checkpoint(make_checkpoint(tmp_path, "llama"), 4, 32)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.mlp.down_proj"
    save_file(tensors | {f"{name}.weight_shape": torch.tensor([64, 127])}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    stored = read_stored_quantization(checkpoint.config)
    with pytest.raises(ModelRefused, match=r"weight_shape is \[64, 127\], not \[64, 128\]"):
        stored.read(checkpoint, name, 64, 128)


def test_floats_where_levels_are_expected(tmp_path: Path) -> None:
    config = json.loads((make_checkpoint(tmp_path, "llama") / "config.json").read_text())
    write_json(tmp_path / "config.json", config | {"quantization_config": quantization_config(8)})
    checkpoint = Checkpoint(tmp_path)
    stored = read_stored_quantization(checkpoint.config)
    with pytest.raises(ModelRefused, match=r"down_proj\.weight has type torch\.float32; expected torch\.int8"):
        stored.read(checkpoint, "model.layers.0.mlp.down_proj", 64, 128)
