"""Counts what a captured decode step asks of an NPU: run in a process of its own by tests/kernels/pypto/test_launches.py."""

from pathlib import Path

import torch

from kernels.testing.launch_counts import counted
from kernels.testing.npu_role import npu_kernels
from worker.decode_graphs import GraphShape, StaticBatch
from worker.models import LoadOptions, load_model

_PAGE = 128


def count(directory: str) -> tuple[dict[str, int], dict[str, int]]:
    """Launches of kernels and calls of torch, by name, in the forward of a decode step of 8 rows."""
    with npu_kernels(), torch.inference_mode():
        model = load_model(Path(directory), LoadOptions(torch.bfloat16, torch.device("cpu"), _PAGE, 4 * _PAGE))
        cache = model.allocate_cache([4])
        static = StaticBatch(GraphShape(8, 4 * _PAGE), cache)
        with counted() as asked:
            model.forward(static.batch, cache)
    return dict(asked.launches), dict(asked.torch_calls)
