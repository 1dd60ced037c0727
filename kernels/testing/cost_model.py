"""Prices PyPTO kernels with PyPTO's cost model of an Ascend 910B. Its cycles compare kernels; they are not times of an NPU."""

import re
import shutil
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

    with taken_over(launch):
        yield cycles


def _read_cycles() -> int:
    (output,) = Path("output").iterdir()
    report = (output / "CostModelSimulationOutput" / "_simulate.stat.report.txt").read_text()
    shutil.rmtree(output)
    found = _TOTAL.search(report)
    if found is None:
        raise RuntimeError(f"the cost model reports no cycles: {report[:500]}")
    return int(found[1])
