"""What most tests of real processes begin with: a tiny model, and a worker that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.checkpoints import TinyCheckpoint
from harness.processes import ServingProcess, worker


@pytest.fixture(scope="module")
def model(tiny_checkpoint: TinyCheckpoint) -> Path:
    """The directory of a checkpoint."""
    return tiny_checkpoint("qwen3", "bfloat16")


@pytest.fixture(scope="module")
def device(model: Path) -> Iterator[ServingProcess]:
    """A worker, which control planes of a module's tests take over from each other."""
    with worker(model) as device:
        yield device
