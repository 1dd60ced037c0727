"""PyPTO's calculator: the library that interprets graphs. It is compiled against the installed torch, once."""

import ctypes
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from pypto._utils import BuildOnlineManager

_LIBRARY = "libtile_fwk_calculator.so"


def calculator_path() -> Path:
    """Where the library is kept for these versions of PyPTO, torch and Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    versions = f"pypto-{version('pypto')}-torch-{torch.__version__}-python-{sys.version_info.major}.{sys.version_info.minor}"
    return cache / "pypto-serving" / "calculator" / versions / _LIBRARY


def load_calculator() -> None:
    """Load the library into this process; builds it first if need be, which takes cmake, make, g++ and about 90 s."""
    manager = BuildOnlineManager()
    if manager.calculator_loaded:
        return
    path = calculator_path()
    if not path.exists():
        _build(manager, path)
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    manager.calculator_loaded = True


def _build(manager: BuildOnlineManager, path: Path) -> None:
    torch_context = manager._TorchContext()
    with tempfile.TemporaryDirectory() as directory:
        context = manager._CMakeContext.CompileContext(src_dir=Path(manager.pkg_lib_dir, "calculator"), tmp_dir=Path(directory))
        context.build_job_num = os.cpu_count() or 1
        context.cfg_cmd_ext = (
            f"-DPY3_MOD_TORCH_VERSION={torch_context.torch_version} -DPY3_MOD_TORCH_ROOT_PATH={torch_context.torch_root_dir} "
            f"-DPY3_MOD_TORCH_C_GLIBCXX_USE_CXX11_ABI={torch_context.torch_c_use_cxx11_abi}"
        )
        installed = manager._CMakeContext().compile(context)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        shutil.copy(installed / "lib" / _LIBRARY, unfinished)
        unfinished.replace(path)


if __name__ == "__main__":
    load_calculator()
    print(calculator_path())
