"""The accelerator under test: see `make test-cuda`. Without one the CPU plays it, so that these tests are tested."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.accelerator_runs import KIND, Accelerator
from harness.checkpoints import QWEN3_0_6B, TinyCheckpoint

from worker.device import DeviceUnavailable


@pytest.fixture(scope="session")
def accelerator() -> Accelerator:
    try:
        return Accelerator.find()
    except DeviceUnavailable as error:
        pytest.exit(f"TEST_DEVICE={KIND}: {error}", returncode=3)


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: TinyCheckpoint, accelerator: Accelerator) -> Callable[[str, str], Path]:
    """Directory of a model by its size, "tiny" or "0.6B", and dtype; only a real device is given the latter."""

    def make(size: str, dtype: str) -> Path:
        if size == "tiny":
            return tiny_checkpoint("qwen3", dtype)
        if not accelerator.is_real:
            pytest.skip("too large for a CPU that plays an accelerator")
        return tiny_checkpoint("qwen3", dtype, **QWEN3_0_6B)

    return make
