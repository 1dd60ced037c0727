"""Prices PyPTO kernels with PyPTO's cost model of an Ascend 910B. Its cycles compare kernels; they are not times of an NPU."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pypto
from torch import Tensor

from kernels.testing.launches import taken_over

_TOTAL = re.compile(r"Total Cycles\D*(\d+)")


@contextmanager
def priced() -> Iterator[list[int]]:
    """Price every kernel launched inside the block: the list receives the cycles of each launch. Nothing is computed.

    Runs in a working directory of its own and needs g++. Cycles depend on values that steer a kernel, such as page tables.
    """
    cycles: list[int] = []

    def launch(kernel: Any, tensors: Sequence[Tensor], pypto_tensors: Sequence[Any]) -> None:
        kernel._verify_options = {"enable_pass_verify": False}
        kernel._host_options = {**(kernel._host_options or {}), "compile_stage": pypto.CompStage.ALL_COMPLETE}
        kernel._set_config_option()
        kernel.compile(pypto_tensors)
        kernel._run_with_cpu(pypto_tensors, [])
        cycles.append(_read_cycles())

    with taken_over(launch), _no_drawing():
        yield cycles


@contextmanager
def _no_drawing() -> Iterator[None]:
    """PyPTO's own scripts, which would draw for ten times as long as the model counts, find a python3 that does nothing."""
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory(prefix="no-drawing-") as directory:
        Path(directory, "python3").symlink_to(shutil.which("true") or "/bin/true")
        os.environ["PATH"] = f"{directory}{os.pathsep}{path}"
        try:
            yield
        finally:
            os.environ["PATH"] = path


def _read_cycles() -> int:
    (output,) = Path("output").iterdir()
    report = (output / "CostModelSimulationOutput" / "_simulate.stat.report.txt").read_text()
    shutil.rmtree(output)
    found = _TOTAL.search(report)
    if found is None:
        raise RuntimeError(f"the cost model reports no cycles: {report[:500]}")
    return int(found[1])
