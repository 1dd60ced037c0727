"""The CPU in the role of an NPU: models load and run on the PyPTO kernels, interpreted or only counted."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from kernels import linear, ops
from kernels.testing.interpreter import interpreted


@contextmanager
def npu_layout() -> Iterator[None]:
    """Within it, models load and run as on an NPU; with the CPU's own kernels unless others are registered."""
    with patch.object(linear, "_is_on_host", lambda weight: False), patch.object(ops, "has_float64", lambda device_type: False):
        yield


@contextmanager
def npu_kernels() -> Iterator[None]:
    """Within it, models load and run on the PyPTO kernels, whose launches somebody has to take over. For a process of its own."""
    from kernels.pypto.registration import register

    with ExitStack() as stack:
        stack.enter_context(npu_layout())
        stack.enter_context(patch.object(ops, "index_dtype", lambda device_type: torch.int32))
        # On a CPU the first of these is dispatched in parts, and the second has a kernel of its own; on an NPU it is the other way round.
        stack.enter_context(patch.object(ops, "qk_rope_kv_write_in_parts", ops._qk_rope_kv_write))
        stack.enter_context(patch.object(ops, "_greatest", ops.greatest_in_parts))
        stack.callback(register("CPU")._destroy)
        yield


@contextmanager
def interpreted_kernels() -> Iterator[list[str]]:
    """Within it, these are interpreted, and the list receives their names. For a process of its own."""
    with npu_kernels(), interpreted() as names:
        yield names
