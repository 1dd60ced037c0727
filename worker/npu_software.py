"""What drives an NPU besides this worker: CANN, torch-npu, PyPTO and the headers it compiles against."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_HOME = "ASCEND_HOME_PATH"  # set by CANN's set_env.sh
_HEADERS = "PTO_TILE_LIB_CODE_PATH"  # names another folder that has pto-isa as include/pto
_UNKNOWN = "unknown"
#: What belongs to a release of CANN by the tables of its makers: versions of torch-npu, the best first, and the beginning of PyPTO's.
_COLUMNS = {
    "8.5": (("2.9.0",), "0.2"),
    "9.1": (("2.12.0", "2.11.0", "2.10.0.post4", "2.9.0.post6"), "9.1"),
}


class NpuKernels(StrEnum):
    """The sets of kernels that may serve an NPU."""

    PYPTO = "pypto"
    CANN = "cann"


@dataclass(frozen=True, slots=True)
class NpuSoftware:
    """Versions, "unknown" where nothing tells, and the folder of pto-isa; of PyPTO and pto-isa "not used" where CANN's kernels serve."""

    kernels: NpuKernels
    cann: str
    torch_npu: str
    pypto: str = "not used"
    pto_isa: str = "not used"

    @property
    def mismatch(self) -> str | None:
        """What does not belong together, and what to install; None: all does, or nothing tells."""
        if self.cann == _UNKNOWN:
            return None
        column = _COLUMNS.get(_release(self.cann))
        if column is None:
            return f"CANN {self.cann} is none that these kernels were written for: install CANN 8.5.0 with {self._wants('8.5')}"
        torch_npu, pypto = column
        fits = self.torch_npu in (*torch_npu, _UNKNOWN)
        if self.kernels is NpuKernels.CANN:
            installed = f"installed is torch-npu {self.torch_npu}"
        else:
            fits &= self.pypto == _UNKNOWN or _release(self.pypto) == pypto
            installed = f"installed are torch-npu {self.torch_npu} and pypto {self.pypto}"
        return None if fits else f"CANN {self.cann} goes with {self._wants(_release(self.cann))}; {installed}"

    @property
    def replay_refusal(self) -> str | None:
        """Why captured steps must not be replayed; None: they may.

        Before 9.1 the control flow that PyPTO generates reads loop bounds without waiting for what was launched before: in a replayed graph
        these may be the numbers of the step before. tests/kernels/pypto/test_code_generation.py has the list.
        """
        if self.kernels is NpuKernels.CANN:
            return "the attention of CANN takes the lengths of sequences from the host, which a graph would repeat"
        numbers = tuple(int(number) for number in re.findall(r"\d+", self.pypto)[:2])
        return None if numbers >= (9, 1) else f"pypto {self.pypto} may steer replayed kernels by numbers of the step before; 9.1 waits"

    def _wants(self, release: str) -> str:
        torch_npu, pypto = _COLUMNS[release]
        return f"torch-npu {torch_npu[0]}" + (f" and pypto {pypto}" if self.kernels is NpuKernels.PYPTO else "")


def find_npu_software(kernels: NpuKernels, environment: Mapping[str, str] = os.environ) -> NpuSoftware:
    """What is installed for a set of kernels. Raises FileNotFoundError with what PyPTO could not run without."""
    cann, torch_npu = cann_version(environment), _package_version("torch-npu")
    if kernels is NpuKernels.CANN:
        return NpuSoftware(kernels, cann, torch_npu)
    if not environment.get(_HOME):
        raise FileNotFoundError(f"{_HOME} is not set, and PyPTO would simulate kernels and write no results: source CANN's set_env.sh")
    headers = Path(environment.get(_HEADERS) or environment[_HOME]) / "include" / "pto"
    if not headers.is_dir():
        raise FileNotFoundError(
            f"there is no folder {headers}, and PyPTO compiles kernels against pto-isa: install it, or set {_HEADERS} to where it lies"
        )
    return NpuSoftware(kernels, cann, torch_npu, _package_version("pypto"), str(headers))


def cann_version(environment: Mapping[str, str] = os.environ) -> str:
    """The version of CANN, "unknown" where nothing tells."""
    home = environment.get(_HOME)
    for path in sorted(Path(home).glob("*-linux/ascend_toolkit_install.info")) if home else ():
        if found := re.search(r"^version=(\S+)", path.read_text(errors="replace"), re.MULTILINE):
            return found[1]
    return _UNKNOWN


def _release(number: str) -> str:
    """The first two parts of a version."""
    return ".".join(number.split(".")[:2])


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return _UNKNOWN
