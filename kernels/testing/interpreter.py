"""Interprets PyPTO kernels on the CPU and reads back what they wrote.

PyPTO's own verdict on an interpreted graph is not used: NaN passes it, and so do some wrong elements.
"""

import csv
import ctypes
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pypto
import torch
from pypto import pypto_impl
from pypto.frontend.parser import entry
from pypto.runtime import _pto_verify_datas
from torch import Tensor

from kernels.testing.calculator import load_calculator
from kernels.testing.depth import Depth
from kernels.testing.launches import taken_over

_DTYPES = {
    "DT_FP32": torch.float32,
    "DT_BF16": torch.bfloat16,
    "DT_FP16": torch.float16,
    "DT_INT32": torch.int32,
    "DT_INT64": torch.int64,
    "DT_INT8": torch.int8,
    "DT_UINT8": torch.uint8,
    "DT_BOOL": torch.uint8,
}


class PassBroken(AssertionError):
    """A compiler pass changed what a kernel computes."""


@contextmanager
def interpreted(depth: Depth = Depth.TENSOR_GRAPH) -> Iterator[list[str]]:
    """Interpret every kernel launched inside the block; its tensors hold the results afterwards, as on an NPU.

    The list receives their names. Runs in a working directory of its own. After an error inside PyPTO the process cannot launch
    anything any more. With ALL_PASSES, raises PassBroken when a pass changes a value by more than 1 % plus 0.001.
    """
    load_calculator()
    names: list[str] = []

    def launch(kernel: Any, tensors: Sequence[Tensor], pypto_tensors: Sequence[Any]) -> None:
        passes = [] if depth is Depth.TENSOR_GRAPH else ["all"]
        kernel._verify_options = {
            "enable_pass_verify": True,
            "pass_verify_save_tensor": depth is Depth.ALL_PASSES,
            "pass_verify_pass_filter": passes,
        }
        stage = pypto.CompStage.TENSOR_GRAPH if depth is Depth.TENSOR_GRAPH else pypto.CompStage.EXECUTE_GRAPH
        kernel._host_options = {**(kernel._host_options or {}), "compile_stage": stage}
        pypto.set_verify_golden_data(goldens=list(tensors))  # only what has a golden value is written to disk
        kernel._set_config_option()
        kernel.compile(pypto_tensors)
        _read_back(tensors, depth)
        names.append(kernel.__name__)

    original = entry.JitCallableWrapper._setup_verify_data
    entry.JitCallableWrapper._setup_verify_data = staticmethod(_hand_over)
    try:
        with taken_over(launch):
            yield names
    finally:
        entry.JitCallableWrapper._setup_verify_data = original


def _hand_over(pypto_tensors: Sequence[Any]) -> None:
    """Give the interpreter the tensors' memory; PyPTO would copy it from an NPU."""
    pypto_impl.SetVerifyData(entry._pto_to_tensor_data(pypto_tensors), [], _pto_verify_datas.get_data())


def _read_back(tensors: Sequence[Tensor], depth: Depth) -> None:
    """Copy the interpreter's results into the tensors and remove its files."""
    ctypes.CDLL(None).fflush(None)  # PyPTO's files are buffered
    (output,) = Path("output").iterdir()
    (verified,) = output.glob("verify_*")
    with (verified / "verify_result_brief.csv").open() as file:
        rows = list(csv.DictReader(file))
    results = {int(row["ioflag"].removeprefix("output")): row for row in rows if row["passName"] == "tensor_graph"}
    if sorted(results) != list(range(len(tensors))):
        raise RuntimeError(f"the interpreter failed: {(verified / 'verify_exception.log').read_text()[:2000]}")
    for index, tensor in enumerate(tensors):
        raw = bytearray((verified / "tensor_graph" / results[index]["outputTensor"]).read_bytes())
        tensor.copy_(torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape))
    if depth is Depth.ALL_PASSES:
        _check_passes(verified, rows)
    shutil.rmtree(output)


def _check_passes(verified: Path, rows: Sequence[dict[str, str]]) -> None:
    for row in rows:
        if row["passName"] == "tensor_graph" or row["outputDtype"] not in _DTYPES:
            continue
        files = [verified / row["passName"] / row[column] for column in ("outputTensor", "goldenTensor")]
        if not all(file.is_file() for file in files):
            continue
        found, expected = (torch.frombuffer(bytearray(file.read_bytes()), dtype=_DTYPES[row["outputDtype"]]).double() for file in files)
        # A pass that infers views writes parts of tensors only; these cannot be compared.
        if found.numel() == expected.numel() and not torch.allclose(found, expected, rtol=1e-2, atol=1e-3, equal_nan=True):
            worst = (found - expected).abs().max().item()
            raise PassBroken(f"{row['passName']} changes {row['ioflag']} by up to {worst:g}")
