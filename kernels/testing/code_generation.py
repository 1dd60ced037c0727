"""Has PyPTO write the sources of kernels for an NPU, on a machine without one: all of its compiler but CANN's bisheng behind it."""

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pypto
from torch import Tensor

from kernels.testing.launches import taken_over

_ON_NPU = 0  # pypto.RunMode.NPU
_READ = re.compile(r"RUNTIME_GetInputData\w*\(ARG_(\w+)")
_WAIT = "WaitAicoreStart("


class NotGenerated(AssertionError):
    """The compiler refused a kernel, or died of it."""


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """The sources of one launch: what an AICPU runs to hand out tasks, and the tasks of the AI cores."""

    name: str
    control_flow: str
    tasks: tuple[str, ...]

    def read_before_wait(self) -> frozenset[str]:
        """Arguments whose values steer the control flow before it waits for what was launched before it.

        In a captured graph such a value may be the one that lay there before the graph began. A wait counts for what follows it in the
        text: within a turn of a loop that is the order of execution, and what the first turn reads before its wait is found.
        """
        return frozenset(_READ.findall(self.control_flow.partition(_WAIT)[0]))


@contextmanager
def generated() -> Iterator[list[GeneratedCode]]:
    """Generate the code of every kernel launched inside the block; nothing is computed. Needs g++. Raises NotGenerated."""
    launches: list[GeneratedCode] = []

    def launch(kernel: Any, _tensors: Sequence[Tensor], pypto_tensors: Sequence[Any]) -> None:
        launches.append(_generate(kernel, pypto_tensors))

    with taken_over(launch):
        yield launches


def _generate(kernel: Any, pypto_tensors: Sequence[Any]) -> GeneratedCode:
    """In a process of its own: PyPTO 0.2.0 dies of the second kernel that one generates code for."""
    with TemporaryDirectory(prefix="pypto-code-") as directory:
        child = os.fork()
        if child == 0:
            _generate_and_exit(kernel, pypto_tensors, Path(directory))
        _, status = os.waitpid(child, 0)
        if status:
            written = Path(directory, "written").read_text(errors="replace")[-2000:]
            raise NotGenerated(f"{kernel.__name__}: the compiler ended with status {status}\n{written}")
        return _read_sources(kernel.__name__, Path(directory))


def _generate_and_exit(kernel: Any, pypto_tensors: Sequence[Any], directory: Path) -> None:
    """Compile as far as to sources, below `directory`; never returns."""
    try:
        os.chdir(directory)
        written = os.open("written", os.O_CREAT | os.O_WRONLY)
        os.dup2(written, 1)
        os.dup2(written, 2)
        # PyPTO only looks whether headers of the toolkit are there; set before its import, it would look for libraries too.
        (directory / "include" / "pto").mkdir(parents=True)
        os.environ["ASCEND_HOME_PATH"] = str(directory)
        kernel._runtime_options["run_mode"] = _ON_NPU
        kernel._verify_options = {"enable_pass_verify": False}
        kernel._host_options = {**(kernel._host_options or {}), "compile_stage": pypto.CompStage.CODEGEN_INSTRUCTION}
        kernel._set_config_option()
        kernel.compile(pypto_tensors)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _read_sources(name: str, directory: Path) -> GeneratedCode:
    (control_flow,) = directory.glob("output/*/kernel_aicpu/controlFlow_host_*.cpp")
    tasks = sorted(directory.glob("output/*/kernel_aicore/*.cpp"))
    return GeneratedCode(name, control_flow.read_text(), tuple(path.read_text() for path in tasks))
