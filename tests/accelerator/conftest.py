"""The accelerator under test: see `make test-cuda`. Without one the CPU plays it, so that these tests are tested."""

from collections.abc import Callable
from pathlib import Path

import pytest
from accelerator_runs import KIND, Accelerator
from checkpoints import TinyCheckpoint

from worker.device import DeviceUnavailable

_SMALL = {  # the shape of Qwen3-0.6B
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}


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
        return tiny_checkpoint("qwen3", dtype, **_SMALL)

    return make
