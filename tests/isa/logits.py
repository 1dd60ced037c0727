"""Prints numerics id and digest of the logits of a tiny model in each type, as JSON: run in a process of its own, under any setting."""

import hashlib
import json
import sys
from pathlib import Path

import torch
from harness.paged_batches import PagedExecutor

from worker.models import LoadOptions, load_model


def describe(directory: str, dtype: torch.dtype) -> tuple[str, str]:
    """Numerics id and digest."""
    model = load_model(Path(directory), LoadOptions(dtype, torch.device("cpu")))
    logits = PagedExecutor(model).logits(range(10, 60))
    return model.numerics_id, hashlib.sha256(logits.numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    print(json.dumps([describe(sys.argv[1], dtype) for dtype in (torch.float32, torch.bfloat16)]))
