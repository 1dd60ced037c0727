"""Takes launches of PyPTO kernels over: PyPTO itself can only run them on an NPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import pypto
import torch
from pypto import pypto_impl
from pypto.frontend.parser import entry
from torch import Tensor

SUPPORTED_VERSION = "0.2.0"

#: Takes a kernel, the tensors of a launch, and the same tensors as PyPTO knows them.
Launch = Callable[[Any, Sequence[Tensor], Sequence[Any]], None]


class UnsupportedPypto(RuntimeError):
    """What is taken over is private to PyPTO, and known of one version only."""


@contextmanager
def taken_over(launch: Launch) -> Iterator[None]:
    """Hand every launch of a kernel to `launch` inside the block, with its options set; raises UnsupportedPypto."""
    found = version("pypto")
    if found != SUPPORTED_VERSION:
        raise UnsupportedPypto(f"pypto {found} is installed; kernels can be tested with {SUPPORTED_VERSION} only")
    wrapper = entry.JitCallableWrapper
    original = wrapper._execute_kernel

    def execute(kernel: Any, tensors: Sequence[Tensor], definitions: Sequence[Any]) -> None:
        assert all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors), "tensors must be contiguous, on the CPU"
        kernel._runtime_options["run_mode"] = pypto.RunMode.SIM.value
        with pypto.options("jit_scope"):
            pypto_impl.DeviceInit()
            launch(kernel, tensors, kernel._convert_tensors_with_metadata(tensors, definitions))

    wrapper._execute_kernel = execute
    try:
        yield
    finally:
        wrapper._execute_kernel = original


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill what `torch.empty` returns with NaN, or the greatest integer: what a kernel did not write can be seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
