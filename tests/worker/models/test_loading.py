"""What a loaded model says of itself, and what is loaded from where."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from harness.checkpoints import TinyCheckpoint, fuse_experts, make_checkpoint, write_json
from harness.paged_batches import PagedExecutor
from safetensors.torch import load_file, save_file

from worker.models import LoadOptions, Model, load_model

TOKEN_IDS = [(31 * index + 3) % 1024 for index in range(20)]


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Model:
    return load_model(directory, LoadOptions(dtype, torch.device("cpu")))


def logits(directory: Path) -> torch.Tensor:
    return PagedExecutor(load(directory)).logits(TOKEN_IDS)


def shard(directory: Path, num_shards: int) -> None:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {name: f"model-{index % num_shards + 1:05}-of-{num_shards:05}.safetensors" for index, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, directory / file)
    write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def test_description(tiny_checkpoint: TinyCheckpoint) -> None:
    description = load(tiny_checkpoint("qwen3")).description
    assert (description.architecture, description.vocab_size, description.max_model_len) == ("Qwen3ForCausalLM", 1024, 4096)


def test_mod_09_bytes_per_token_follow_heads_and_type(tiny_checkpoint: TinyCheckpoint) -> None:
    (group,) = load(tiny_checkpoint("qwen3", head_dim=32), torch.bfloat16).cache_groups
    assert group.row_bytes == 2 * 2 * 32 * 2
    assert group.page_bytes == group.row_bytes * 16 * 2


def test_numerics_id_tells_types_apart(tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint("llama")
    assert load(directory).numerics_id == load(directory).numerics_id
    assert load(directory).numerics_id != load(directory, torch.bfloat16).numerics_id


def test_progress_is_reported_per_tensor_and_per_layer(tiny_checkpoint: TinyCheckpoint) -> None:
    calls: list[str] = []
    counts = {"progress": lambda: calls.append("load"), "expect_tensors": lambda count: calls.append(f"of {count}")}
    model = load_model(tiny_checkpoint("llama"), LoadOptions(torch.float32, torch.device("cpu"), **counts))
    assert calls == ["of 20", *["load"] * 20]  # tensors
    calls.clear()
    model.progress = lambda: calls.append("layer")
    PagedExecutor(model).logits(TOKEN_IDS)
    assert calls == ["layer", "layer"]


def test_shards_give_the_same_model(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    shard(directory, 3)
    assert torch.equal(logits(directory), logits(tiny_checkpoint("llama")))


def test_mod_03_files_that_the_index_does_not_name_are_not_read(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    shard(directory, 2)
    other = make_checkpoint(tmp_path / "other", "llama", seed=1) / "model.safetensors"
    for name in ("model.safetensors", "consolidated.safetensors", "adapter_model.safetensors"):
        shutil.copyfile(other, directory / name)
    assert torch.equal(logits(directory), logits(tiny_checkpoint("llama")))


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "another.weight"])
def test_tkz_07_tensors_that_the_index_does_not_name_are_not_read(tmp_path: Path, tiny_checkpoint: TinyCheckpoint, name: str) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    shard(directory, 2)
    for path in directory.glob("model-*.safetensors"):
        save_file(load_file(path) | {name: torch.ones(8)}, path)
    assert torch.equal(logits(directory), logits(tiny_checkpoint("llama")))


@pytest.mark.parametrize(("arch", "positions"), [("llama", 2048), ("qwen2", 32768), ("qwen3", 32768), ("qwen3_moe", 32768)])
def test_tkz_08_positions_and_activation_have_the_defaults_and_names_of_transformers(tmp_path: Path, arch: str, positions: int) -> None:
    from transformers import AutoConfig

    directory = make_checkpoint(tmp_path, arch, max_position_embeddings=None, hidden_act="swish")
    assert load(directory).description.max_model_len == AutoConfig.from_pretrained(directory).max_position_embeddings == positions


def test_tkz_08_a_byte_order_mark_is_no_part_of_the_config(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    (directory / "config.json").write_bytes(b"\xef\xbb\xbf" + (directory / "config.json").read_bytes())
    assert load(directory).description.num_layers == 2


def test_mod_01_tied_model_may_store_a_copy_of_its_head(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, directory / "model.safetensors")
    assert torch.equal(logits(directory), logits(tiny_checkpoint("llama")))


def test_stored_rotary_frequencies_are_ignored(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, directory / "model.safetensors")
    assert torch.equal(logits(directory), logits(tiny_checkpoint("llama")))


def test_fused_experts_give_the_same_model(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = make_checkpoint(tmp_path, "qwen3_moe")
    fuse_experts(directory)
    assert torch.equal(logits(directory), logits(tiny_checkpoint("qwen3_moe")))


def test_other_name_for_the_number_of_experts(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = make_checkpoint(tmp_path, "qwen3_moe")
    config = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", config | {"num_experts": None, "num_local_experts": 8})
    assert torch.equal(logits(directory), logits(tiny_checkpoint("qwen3_moe")))


def test_mod_04_relative_path_with_trailing_slash(tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny_checkpoint("llama")
    monkeypatch.chdir(directory.parent)
    assert load(Path(f"{directory.name}/")).description.num_layers == 2


def test_mod_05_type_of_the_weights_need_not_be_named(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    config = json.loads((directory / "config.json").read_text())
    del config["dtype"]
    write_json(directory / "config.json", config)
    assert torch.equal(logits(directory), logits(tiny_checkpoint("llama")))


@pytest.mark.parametrize(("positions", "factor", "original"), [(65536, 4.0, 16384), (81920, 20.0, 4096), (16384, 4.0, 16384)])
def test_mod_06_yarn_does_not_multiply_the_context_twice(
    positions: int, factor: float, original: int, tiny_checkpoint: TinyCheckpoint
) -> None:
    scaling = {"type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    model = load(tiny_checkpoint("llama", rope_scaling=scaling, max_position_embeddings=positions))
    assert model.description.max_model_len == original * factor


def test_mod_06_the_last_position_of_an_extended_context_works(tiny_checkpoint: TinyCheckpoint) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16384}
    model = load(tiny_checkpoint("llama", rope_scaling=scaling, max_position_embeddings=65536))
    executor = PagedExecutor(model, num_pages=4096)
    sequence = executor.sequence(TOKEN_IDS, max_tokens=65536)
    sequence.token_ids += [7] * (65536 - len(TOKEN_IDS))
    sequence.num_computed_tokens = 65534
    assert executor.step((sequence, 2))[0].isfinite().all()


def test_batch_may_want_no_logits(tiny_checkpoint: TinyCheckpoint) -> None:
    executor = PagedExecutor(load(tiny_checkpoint("qwen3")))
    expected, sequence = executor.logits(TOKEN_IDS), executor.sequence(TOKEN_IDS)
    executor.prefill(sequence, 12)
    assert torch.equal(executor.step((sequence, 8))[0], expected[12:])
