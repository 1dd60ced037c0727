"""What tests of the assembled control plane share."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from fakes.text.model_directory import write_model_directory
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions

from pypto_serving.wire.fingerprint import fingerprint_model


def next_letter(tokens: Sequence[int]) -> int:
    """a, b, c, ..."""
    return ord("a") + (tokens[-1] + 1 - ord("a")) % 26


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose tokens are bytes."""
    return write_model_directory(tmp_path / "model")


@pytest.fixture
async def worker(model: Path) -> AsyncIterator[FakeWorker]:
    """A worker that counts letters up; a test may change its options."""
    options = FakeWorkerOptions(vocab_size=320, max_model_len=64, model_fingerprint=fingerprint_model(model), next_token=next_letter)
    worker = FakeWorker(options)
    await worker.start()
    yield worker
    await worker.stop()
