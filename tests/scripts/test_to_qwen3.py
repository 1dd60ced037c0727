"""A Llama model keeps its logits when it is re-expressed."""

import json
from pathlib import Path

import pytest
import torch
from harness.checkpoints import TinyCheckpoint
from harness.paged_batches import PagedExecutor

from scripts.to_qwen3 import Experts, to_qwen3
from worker.models import LoadOptions, load_model

TOKEN_IDS = [(41 * index + 17) % 1024 for index in range(30)]


def logits(directory: Path) -> torch.Tensor:
    return PagedExecutor(load_model(directory, LoadOptions(torch.float32, torch.device("cpu")))).logits(TOKEN_IDS)


@pytest.mark.parametrize("experts", [None, Experts(4, top_k=2)], ids=["qwen3", "qwen3_moe"])
def test_logits_stay(experts: Experts | None, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    source = tiny_checkpoint("llama")
    expected = logits(source)
    assert torch.allclose(logits(to_qwen3(source, tmp_path, experts)), expected, atol=1e-4 * float(expected.abs().max()))


def test_tokenizer_comes_along(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    to_qwen3(tiny_checkpoint("llama"), tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (tiny_checkpoint("llama") / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
