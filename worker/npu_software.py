"""What drives an NPU besides this worker: CANN, torch-npu, PyPTO and the headers it compiles against."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_HOME = "ASCEND_HOME_PATH"  # set by CANN's set_env.sh
_HEADERS = "PTO_TILE_LIB_CODE_PATH"  # names another folder of pto-isa
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NpuSoftware:
    """Versions, "unknown" where nothing tells, and the folder of pto-isa."""

    cann: str
    torch_npu: str
    pypto: str
    pto_isa: str

    @property
    def replay_refusal(self) -> str | None:
        """Why captured steps must not be replayed; None: they may.

        Before 9.1 the control flow that PyPTO generates reads loop bounds without waiting for what was launched before: in a replayed graph
        these may be the numbers of the step before. tests/kernels/pypto/test_code_generation.py has the list.
        """
        numbers = tuple(int(number) for number in re.findall(r"\d+", self.pypto)[:2])
        return None if numbers >= (9, 1) else f"pypto {self.pypto} may steer replayed kernels by numbers of the step before; 9.1 waits"


def find_npu_software(environment: Mapping[str, str] = os.environ) -> NpuSoftware:
    """What is installed. Raises FileNotFoundError with what PyPTO could not run without."""
    if not environment.get(_HOME):
        raise FileNotFoundError(f"{_HOME} is not set, and PyPTO would simulate kernels and write no results: source CANN's set_env.sh")
    home = Path(environment[_HOME])
    headers = Path(environment.get(_HEADERS) or home / "include" / "pto")
    if not headers.is_dir():
        raise FileNotFoundError(
            f"there is no folder {headers}, and PyPTO compiles kernels against pto-isa: install it, or name it in {_HEADERS}"
        )
    return NpuSoftware(_cann_version(home), _package_version("torch-npu"), _package_version("pypto"), str(headers))


def _cann_version(home: Path) -> str:
    for path in sorted(home.glob("*-linux/ascend_toolkit_install.info")):
        if found := re.search(r"^version=(\S+)", path.read_text(errors="replace"), re.MULTILINE):
            return found[1]
    return _UNKNOWN


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return _UNKNOWN
