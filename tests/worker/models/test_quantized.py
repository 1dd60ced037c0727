"""Models with matrices of 8 and 4 bits: made at loading, and published that way."""

from pathlib import Path

import pytest
import torch
from harness.checkpoints import ARCHITECTURES, TinyCheckpoint, fuse_experts, make_checkpoint
from harness.paged_batches import PagedExecutor
from harness.quantized_checkpoints import quantize_checkpoint
from safetensors.torch import load_file, save_file

from kernels.quantized import Quantizer
from worker.checkpoint.config_fields import ModelRefused
from worker.models import LoadOptions, Model, load_model

CPU = torch.device("cpu")
TOKEN_IDS = [(53 * index + 7) % 1024 for index in range(40)]
FAMILIES = pytest.mark.parametrize("arch", ARCHITECTURES)
NAMES = pytest.mark.parametrize("name", ["int8", "int4"])


def load(directory: Path, name: str | None = None, dtype: torch.dtype = torch.float32) -> Model:
    return load_model(directory, LoadOptions(dtype, CPU, quantizer=Quantizer.parse(name) if name else None))


def logits(model: Model, chunk: int = 64) -> torch.Tensor:
    return PagedExecutor(model).logits(TOKEN_IDS, chunk)


def difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference, in units of the spread of what is expected."""
    return float((logits - expected).square().mean().sqrt() / expected.std())


@FAMILIES
@NAMES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_the_same_in_chunks_and_among_others(arch: str, name: str, dtype: torch.dtype, tiny_checkpoint: TinyCheckpoint) -> None:
    executor = PagedExecutor(load(tiny_checkpoint(arch, hidden_size=192, intermediate_size=320), name, dtype), num_pages=128)
    whole = executor.logits(TOKEN_IDS)
    assert all(torch.equal(executor.logits(TOKEN_IDS, chunk), whole) for chunk in (1, 7, 16, 33))
    sequence, others = executor.sequence(TOKEN_IDS), [executor.sequence(TOKEN_IDS[index:]) for index in range(1, 9)]
    rows = [executor.step((others[0], 2), (sequence, 5), *((other, 1) for other in others[1:]))[1] for _ in range(8)]
    assert torch.equal(torch.cat(rows), whole)


@FAMILIES
@pytest.mark.parametrize(("name", "bound"), [("int8", 0.05), ("int4", 0.3)])
def test_quantized_models_are_close_to_the_exact_one(arch: str, name: str, bound: float, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint(arch)
    assert 0 < difference(logits(load(directory, name)), logits(load(directory))) < bound


@FAMILIES
@pytest.mark.parametrize(("bits", "group", "symmetric"), [(8, 0, True), (4, 32, True), (4, 16, False)])
def test_published_checkpoints_compute_with_the_matrices_they_store(
    arch: str, bits: int, group: int, symmetric: bool, tmp_path: Path
) -> None:
    directory = make_checkpoint(tmp_path, arch)
    tensors, config = load_file(directory / "model.safetensors"), (directory / "config.json").read_text()
    stored = quantize_checkpoint(directory, bits, group, symmetric)
    published = logits(load(directory))
    save_file(tensors | stored, directory / "model.safetensors")
    (directory / "config.json").write_text(config)
    assert 0 < difference(published, logits(load(directory))) < 0.03  # the rounding of rows to 8 bits


@pytest.mark.parametrize(("arch", "tied"), [("qwen3", True), ("qwen3", False)])
@NAMES
def test_numerics_id_names_the_quantization(arch: str, tied: bool, name: str, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint(arch, tie_word_embeddings=tied)
    kind = {"int8": "float32-int8", "int4": "float32-int4:32"}[name]
    exact, quantized = load(directory).numerics_id, load(directory, name).numerics_id
    assert quantized.split("/") == [kind, *exact.split("/")[1:]]


def test_numerics_id_names_what_a_checkpoint_stores(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    quantize_checkpoint(directory, 4, 16)
    assert load(directory).numerics_id.startswith("float32-int4:16/")


def refusal(directory: Path, name: str | None = None) -> str:
    with pytest.raises(ModelRefused) as caught:
        load(directory, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_quantizing_what_is_quantized(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    quantize_checkpoint(directory, 8)
    message = f"--quantize int8: {directory / 'config.json'} says that the model is quantized already, to int8"
    assert refusal(directory, "int8") == message


def test_groups_that_do_not_divide_the_inputs(tmp_path: Path) -> None:
    message = "--quantize int4:128: groups of 128 do not divide the 64 columns of model.layers.0.self_attn.q_proj.weight"
    assert refusal(make_checkpoint(tmp_path, "llama"), "int4:128") == message


def test_fused_experts(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "qwen3_moe")
    fuse_experts(directory)
    message = "tensor model.layers.0.mlp.experts.gate_up_proj holds all experts; int8 is for experts that are stored one by one"
    assert refusal(directory, "int8") == f"{directory}: {message}"


def test_matrices_of_one_layer_that_are_stored_unlike(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    quantize_checkpoint(directory, 8)
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"re:.*mlp.gate$"', '"model.layers.1.self_attn.k_proj"'))
    queries, keys = (f"model.layers.1.self_attn.{part}_proj" for part in "qk")
    assert refusal(directory).endswith(f"quantization_config: {queries} is quantized and {keys} is not; both or none is supported")


def test_quantized_checkpoint_on_another_device(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    quantize_checkpoint(directory, 4)
    with pytest.raises(ModelRefused, match=r"quantization_config: int4:32 is for --device cpu; this is meta"):
        load_model(directory, LoadOptions(torch.bfloat16, torch.device("meta")))
