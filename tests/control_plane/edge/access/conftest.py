"""A model, and a worker that serves it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.text.model_directory import write_model_directory
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions

from pypto_serving.wire.fingerprint import fingerprint_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model_directory(tmp_path / "model")


@pytest.fixture
async def worker(model: Path) -> AsyncIterator[FakeWorker]:
    worker = FakeWorker(FakeWorkerOptions(vocab_size=320, max_model_len=64, model_fingerprint=fingerprint_model(model)))
    await worker.start()
    yield worker
    await worker.stop()
