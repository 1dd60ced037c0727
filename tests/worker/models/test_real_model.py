"""Greedy text of a real model, as it is and re-expressed for the other families, equals transformers'."""

from pathlib import Path

import pytest
import torch
from harness.oracle import Oracle
from harness.paged_batches import PagedExecutor
from transformers import PreTrainedTokenizerFast

from scripts.to_qwen3 import Experts, to_qwen3
from worker.models import LoadOptions, load_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
QUESTION = "What is the capital of France? Answer in one sentence."
STORY = "Write a short story about a robot who learns to paint."


def load(directory: Path, dtype: torch.dtype = torch.float32) -> PagedExecutor:
    return PagedExecutor(load_model(directory, LoadOptions(dtype, torch.device("cpu"))))


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(demo_model)


def chat(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)


def test_llama(demo_model: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = chat(tokenizer, STORY)
    assert load(demo_model).greedy(prompt, 48) == Oracle(demo_model).greedy(prompt, 48)


@pytest.mark.parametrize("experts", [None, Experts(4, top_k=2)], ids=["qwen3", "qwen3_moe"])
def test_qwen3(experts: Experts | None, demo_model: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    directory, prompt = to_qwen3(demo_model, tmp_path, experts), chat(tokenizer, STORY)
    assert load(directory).greedy(prompt, 24) == Oracle(directory).greedy(prompt, 24)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_answer(dtype: torch.dtype, demo_model: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = load(demo_model, dtype).greedy(chat(tokenizer, QUESTION), 8)
    assert tokenizer.decode(tokens) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_logits_are_the_same_beside_others_and_in_chunks(dtype: torch.dtype, demo_model: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    executor, prompt = load(demo_model, dtype), chat(tokenizer, STORY)
    alone = executor.logits(prompt)
    assert torch.equal(executor.logits(prompt, 7), alone)
    sequence, others = executor.sequence(prompt), [executor.sequence(prompt[index:]) for index in range(1, 8)]
    together = [executor.step((others[0], 3), (sequence, 10), *((other, 1) for other in others[1:]))[1], executor.step((sequence, 1))[0]]
    assert torch.equal(torch.cat(together), alone[:11])
