"""Runs operators of kernels.pypto: interpreted, or with TEST_DEVICE=npu on an Ascend NPU."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.testing.depth import Depth
from kernels.testing.operators import call_on_device, interpret
from worker.device import DeviceUnavailable, select_device
from worker.npu_software import NpuKernels

_ON_NPU = os.environ.get("TEST_DEVICE") == "npu"


@pytest.fixture(scope="session")
def device() -> torch.device | None:
    """The NPU, if it is to be used."""
    if not _ON_NPU:
        return None
    try:
        return select_device("npu", npu_kernels=NpuKernels.PYPTO).torch_device
    except DeviceUnavailable as error:
        pytest.exit(f"TEST_DEVICE=npu: {error}", returncode=3)


@pytest.fixture
def outcome(device: torch.device | None) -> Callable[..., tuple[list[Tensor], list[Any]]]:
    """Calls "module:name" of kernels.pypto: its results, and its arguments as it left them; see interpret."""

    def call(operator: str, *args: Any, depth: Depth = Depth.TENSOR_GRAPH) -> tuple[list[Tensor], list[Any]]:
        return call_on_device(operator, *args, device=device) if device else interpret(operator, *args, depth=depth)

    return call


@pytest.fixture(autouse=True)
def available(request: pytest.FixtureRequest, outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is marked `kernels` runs without PyPTO, and on an NPU only what calls operators in this process."""
    if request.node.get_closest_marker("kernels") is None:
        return
    if find_spec("pypto") is None:
        pytest.skip("PyPTO is not installed: extra `kernels-dev`")
    if _ON_NPU and "run" not in request.fixturenames and not hasattr(request.module, "interpret"):
        pytest.skip("needs the interpreter")
    monkeypatch.setattr(request.module, "interpret", outcome, raising=False)


@pytest.fixture
def run(outcome: Any) -> Callable[..., Any]:
    """Calls "module:name" of kernels.pypto: gives its results, after a check that it left its arguments alone."""

    def call(operator: str, *args: Any, depth: Depth = Depth.TENSOR_GRAPH) -> Any:
        results, left = outcome(operator, *args, depth=depth)
        for before, after in zip(args, left, strict=True):
            assert not isinstance(before, Tensor) or torch.equal(before.nan_to_num(), after.nan_to_num()), "an argument was changed"
        return tuple(results) if len(results) > 1 else results[0]

    return call


@pytest.fixture
def random() -> Callable[..., Tensor]:
    """Normal numbers in bf16, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).bfloat16()
