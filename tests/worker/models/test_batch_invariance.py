"""The logits of a row are batch-invariant, bit for bit."""

import random

import pytest
import torch
from harness.checkpoints import ARCHITECTURES, TinyCheckpoint
from harness.paged_batches import PagedExecutor, chunk_sizes

from worker.models import LoadOptions, load_model

PAGE = 16
TOKEN_IDS = [(53 * index + 7) % 1024 for index in range(75)]
FAMILIES = pytest.mark.parametrize("arch", ARCHITECTURES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture
def executor(arch: str, dtype: torch.dtype, tiny_checkpoint: TinyCheckpoint) -> PagedExecutor:
    # Wide enough for the libraries to choose different kernels for different numbers of rows.
    directory = tiny_checkpoint(arch, str(dtype).removeprefix("torch."), hidden_size=192, intermediate_size=576)
    return PagedExecutor(load_model(directory, LoadOptions(dtype, torch.device("cpu"), page_tokens=PAGE)), num_pages=128)


@FAMILIES
@DTYPES
def test_logits_are_the_same_in_chunks_of_any_size(executor: PagedExecutor) -> None:
    whole = executor.logits(TOKEN_IDS)
    for chunk in (1, 7, PAGE - 1, PAGE, PAGE + 1, 64):
        assert torch.equal(executor.logits(TOKEN_IDS, chunk), whole), chunk


@FAMILIES
@DTYPES
def test_logits_are_the_same_beside_others(executor: PagedExecutor) -> None:
    alone, chooser = executor.logits(TOKEN_IDS), random.Random(1)
    sequence, crowd = executor.sequence(TOKEN_IDS), [executor.sequence(TOKEN_IDS[index:]) for index in range(1, 16)]
    rows = []
    for chunk in chunk_sizes(len(TOKEN_IDS), 5):
        others = chooser.sample([other for other in crowd if len(other.token_ids) - other.num_computed_tokens > 3], chooser.randrange(9))
        chunks = [(other, chooser.choice([1, 1, 2, 3])) for other in others]
        place = chooser.randint(0, len(chunks))
        rows.append(executor.step(*chunks[:place], (sequence, chunk), *chunks[place:])[place])
    assert torch.equal(torch.cat(rows), alone)


@FAMILIES
@DTYPES
def test_pages_left_by_others_do_not_matter(executor: PagedExecutor) -> None:
    expected = executor.logits(TOKEN_IDS)
    for tensor in (*executor.cache.keys, *executor.cache.values):
        tensor.fill_(1e4)
    assert torch.equal(executor.logits(TOKEN_IDS, 9), expected)


@pytest.mark.parametrize("arch", ["qwen3"])
@DTYPES
def test_padding_touches_no_page_of_a_sequence(executor: PagedExecutor) -> None:
    executor.step((executor.sequence(TOKEN_IDS[:1]), 1))
    scratch = executor.num_pages
    for tensor in (*executor.cache.keys, *executor.cache.values):
        written = [page for page in range(scratch) if tensor[page].any()]
        assert len(written) == 1


@pytest.mark.parametrize("arch", ["qwen2"])
@DTYPES
def test_windowed_layers_are_the_same_in_chunks(arch: str, dtype: torch.dtype, tiny_checkpoint: TinyCheckpoint) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    directory = tiny_checkpoint(arch, str(dtype).removeprefix("torch."), **windows)
    executor = PagedExecutor(load_model(directory, LoadOptions(dtype, torch.device("cpu"), page_tokens=4)))
    whole = executor.logits(TOKEN_IDS)
    assert all(torch.equal(executor.logits(TOKEN_IDS, chunk), whole) for chunk in (1, 3, 7, 8, 9))
