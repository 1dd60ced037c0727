"""Counts what a captured decode step asks of an NPU: run in a process of its own by tests/kernels/pypto/test_launches.py."""

from pathlib import Path

import torch

from kernels.testing.launch_counts import counted
from kernels.testing.npu_role import npu_kernels
from worker.decode_graphs import GraphShape, StaticBatch
from worker.models import LoadOptions, load_model

_PAGE = 128


def count(directory: str) -> tuple[dict[str, int], dict[str, int], set[str]]:
    """Launches of kernels and calls of torch, by name, in the forward of a decode step of 8 rows.

    And the kernels that take integers which the forward itself computes, or give them.
    """
    with npu_kernels(), torch.inference_mode():
        model = load_model(Path(directory), LoadOptions(torch.bfloat16, torch.device("cpu"), _PAGE, 4 * _PAGE))
        cache = model.allocate_cache([4])
        static = StaticBatch(GraphShape(8, 4 * _PAGE), cache)
        with counted() as asked:
            model.forward(static.batch, cache)
    batch = static.batch
    given = {_memory(tensor) for tensor in (batch.token_ids, batch.query_starts, *batch.page_tables)}
    computed = {
        name for name, tensors in asked.operands for tensor in tensors if tensor.dtype == torch.int32 and _memory(tensor) not in given
    }
    return dict(asked.launches), dict(asked.torch_calls), computed


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
