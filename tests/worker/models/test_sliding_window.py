"""The exact width of a window, and what lies outside it."""

from pathlib import Path

import pytest
import torch
from harness.checkpoints import TinyCheckpoint
from harness.paged_batches import PagedExecutor

from worker.models import LoadOptions, Model, load_model

WINDOW = 8
TOKEN_IDS = [(29 * index + 5) % 1024 for index in range(24)]


@pytest.fixture
def directory(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("qwen3_moe", num_hidden_layers=1, use_sliding_window=True, sliding_window=WINDOW)


def load(directory: Path) -> Model:
    return load_model(directory, LoadOptions(torch.float32, torch.device("cpu"), page_tokens=1))


@pytest.mark.parametrize("chunk", [1, 24])
def test_mod_08_a_token_sees_itself_and_the_seven_before_it(directory: Path, chunk: int) -> None:
    executor = PagedExecutor(load(directory))
    expected = executor.logits(TOKEN_IDS, chunk)
    changed = [*TOKEN_IDS[:4], 999, *TOKEN_IDS[5:]]
    differs = (executor.logits(changed, chunk) != expected).any(-1).tolist()
    assert [index for index, differs_there in enumerate(differs) if differs_there] == list(range(4, 4 + WINDOW))


@pytest.mark.parametrize("chunk", [1, 24])
def test_mod_08_full_layers_see_everything(tiny_checkpoint: TinyCheckpoint, chunk: int) -> None:
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4}
    directory = tiny_checkpoint("qwen3", use_sliding_window=True, sliding_window=WINDOW, **layers)
    executor = PagedExecutor(load(directory))
    expected = executor.logits(TOKEN_IDS)
    assert torch.equal(executor.logits(TOKEN_IDS, chunk), expected)
    assert (executor.logits([999, *TOKEN_IDS[1:]], chunk) != expected).any(-1).all()


def test_pages_that_left_the_window_may_be_gone(directory: Path) -> None:
    executor = PagedExecutor(load(directory))
    expected, sequence = executor.logits(TOKEN_IDS), executor.sequence(TOKEN_IDS)
    executor.step((sequence, 20))
    sequence.page_tables[0][: 20 - WINDOW + 1] = [-1] * (20 - WINDOW + 1)
    assert torch.equal(executor.step((sequence, 4))[0], expected[20:])


def test_layers_with_different_windows_are_different_groups(tiny_checkpoint: TinyCheckpoint) -> None:
    model = load(tiny_checkpoint("qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1))
    groups = [(group.name, group.layers, group.window_tokens) for group in model.cache_groups]
    assert groups == [("full", (0,), None), ("window-8", (1, 2), 8)]
