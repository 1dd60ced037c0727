"""Logits equal transformers', whatever the family, the config and the way the tokens are cut into steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness.checkpoints import ARCHITECTURES, TinyCheckpoint
from harness.oracle import Oracle
from harness.paged_batches import PagedExecutor

from worker.models import LoadOptions, load_model

PAGE = 16
TOKEN_IDS = [(37 * index + 11) % 1024 for index in range(61)]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
Config = tuple[str, dict[str, Any]]
HEADS: dict[str, Config] = {
    "tied": ("llama", {}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "untied-qwen3": ("qwen3", {"tie_word_embeddings": False}),
    "tied-moe": ("qwen3_moe", {"tie_word_embeddings": True}),
}
ABSENT: dict[str, Config] = {
    "kv-heads": ("llama", {"num_key_value_heads": None}),
    "head-dim": ("qwen2", {"head_dim": None}),
    "head-dim-qwen3": ("qwen3", {"head_dim": None, "hidden_size": 512}),
    "eps": ("llama", {"rms_norm_eps": None}),
    "theta": ("llama", {"rope_theta": None}),
    "tied": ("qwen3_moe", {"tie_word_embeddings": None}),
    "eos": ("llama", {"eos_token_id": None}),
    "norm-topk": ("qwen3_moe", {"norm_topk_prob": None}),
}
ROPES: dict[str, Config] = {
    "theta": ("llama", {"rope_theta": 500.0}),
    "rope-parameters": ("llama", {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "linear-new-style": ("qwen3", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}}),
    "linear-both-styles": ("llama", {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0}}),
    "llama3": ("llama", {"rope_scaling": LLAMA3, "rope_theta": 500000.0}),
    "llama3-new-style": ("llama", {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 500000.0}}),
    "yarn": ("qwen2", {"rope_scaling": YARN, "max_position_embeddings": 64}),
    "yarn-new-style": ("qwen3", {"rope_parameters": {**YARN, "rope_theta": 1e6}, "max_position_embeddings": 64}),
    "yarn-attention-factor": ("llama", {"rope_scaling": {**YARN, "attention_factor": 1.5}, "max_position_embeddings": 64}),
    "yarn-mscale": ("llama", {"rope_scaling": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.8}, "max_position_embeddings": 64}),
    "yarn-untruncated": ("llama", {"rope_scaling": {**YARN, "truncate": False, "beta_fast": 16.0}, "max_position_embeddings": 64}),
}
WINDOWS: dict[str, Config] = {
    "upper-layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "by-layer-type": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "everywhere": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}),
    "unused": ("qwen2", {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}),
}
ATTENTION: dict[str, Config] = {
    "large-heads": ("qwen3", {"head_dim": 32}),
    "large-heads-llama": ("llama", {"head_dim": 32}),
    "one-kv-head": ("qwen3", {"num_key_value_heads": 1, "head_dim": 32}),
    "no-grouping": ("qwen3", {"num_key_value_heads": 4, "head_dim": 32}),
    "no-grouping-qwen2": ("qwen2", {"num_key_value_heads": 4}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "biases-qwen3": ("qwen3", {"attention_bias": True}),
}
ROUTERS: dict[str, Config] = {
    "scaled-weights": ("qwen3_moe", {"norm_topk_prob": True}),
    "unscaled-weights": ("qwen3_moe", {"norm_topk_prob": False}),
    "every-second-layer": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "mlp-only-layers": ("qwen3_moe", {"mlp_only_layers": [1]}),
}
EVERY_ARCH = pytest.mark.parametrize("arch", ARCHITECTURES)


def load(directory: Path, dtype: torch.dtype = torch.float32) -> PagedExecutor:
    return PagedExecutor(load_model(directory, LoadOptions(dtype, torch.device("cpu"), page_tokens=PAGE)))


def assert_equal(directory: Path, *chunks: int) -> None:
    """The oracle's logits, whole and in chunks."""
    oracle, executor = Oracle(directory), load(directory)
    expected = oracle.logits(TOKEN_IDS)
    for chunk in (len(TOKEN_IDS), *chunks):
        assert not oracle.tolerances["cpu", torch.float32].refusal(executor.logits(TOKEN_IDS, chunk), expected), chunk


@EVERY_ARCH
def test_logits_equal_in_chunks_of_any_size(arch: str, tiny_checkpoint: TinyCheckpoint) -> None:
    assert_equal(tiny_checkpoint(arch), 1, 7, PAGE - 1, PAGE, PAGE + 1)


@EVERY_ARCH
def test_logits_equal_in_mixed_batches(arch: str, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint(arch)
    oracle, executor = Oracle(directory), load(directory)
    sequences = [executor.sequence(TOKEN_IDS[start:]) for start in (0, 20, 40)]
    steps = [(21, 0, 1), (1, 30, 1), (1, 1, 7), (17, 1, 1), (1, 9, 1)]
    logits: list[list[torch.Tensor]] = [[], [], []]
    for step in steps:
        running = [index for index, num_tokens in enumerate(step) if num_tokens]
        for index, rows in zip(running, executor.step(*((sequences[index], step[index]) for index in running)), strict=True):
            logits[index].append(rows)
    for sequence, rows in zip(sequences, map(torch.cat, logits), strict=True):
        assert not oracle.tolerances["cpu", torch.float32].refusal(rows, oracle.logits(sequence.token_ids)[: len(rows)])


def every(configs: dict[str, Config]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("arch", "fields"), configs.values(), ids=configs)


@every(HEADS)
def test_mod_01_heads(arch: str, fields: dict[str, Any], tiny_checkpoint: TinyCheckpoint) -> None:
    assert_equal(tiny_checkpoint(arch, **fields))


@every(ABSENT)
def test_mod_05_absent_fields(arch: str, fields: dict[str, Any], tiny_checkpoint: TinyCheckpoint) -> None:
    assert_equal(tiny_checkpoint(arch, **fields))


@every(ROPES)
def test_mod_05_mod_07_ropes(arch: str, fields: dict[str, Any], tiny_checkpoint: TinyCheckpoint) -> None:
    assert_equal(tiny_checkpoint(arch, **fields), 17)


@every(WINDOWS)
def test_mod_08_windows(arch: str, fields: dict[str, Any], tiny_checkpoint: TinyCheckpoint) -> None:
    assert_equal(tiny_checkpoint(arch, **fields), 1, 17)


@every(ATTENTION)
def test_mod_09_heads_of_every_shape(arch: str, fields: dict[str, Any], tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint(arch, **fields)
    assert_equal(directory, 17)
    assert load(directory).greedy(TOKEN_IDS[:9], 20) == Oracle(directory).greedy(TOKEN_IDS[:9], 20)


@every(ROUTERS)
def test_mod_10_routers(arch: str, fields: dict[str, Any], tiny_checkpoint: TinyCheckpoint) -> None:
    assert_equal(tiny_checkpoint(arch, **fields), 17)


@EVERY_ARCH
def test_mod_11_logits_in_bfloat16_are_close(arch: str, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint(arch, "bfloat16")
    oracle, executor = Oracle(directory), load(directory, torch.bfloat16)
    assert not oracle.tolerances["cpu", torch.bfloat16].refusal(executor.logits(TOKEN_IDS), oracle.logits(TOKEN_IDS))
