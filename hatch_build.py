"""Build hook: what the sdist and the wheel hold beyond the files that git knows.

Both get the generated stubs. The wheel also gets C++ kernels, compiled for the torch of the environment that builds it, if
PYPTO_WHEEL_LEVELS names levels of instructions ("avx512_bf16 avx512 avx2"); it then is for this platform only. `make wheel` sets that up.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Makes the files in a folder of its own; an editable installation has them in place, from `make proto kernels`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add stubs and kernels to what the target includes."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        stubs, kernels = Path(self._folder.name, "stubs"), Path(self._folder.name, "kernels")
        self._run("scripts/generate_stubs.py", str(stubs))
        root = "protos/" if self.target_name == "sdist" else ""
        build_data["force_include"] |= {str(path): root + path.relative_to(stubs).as_posix() for path in stubs.rglob("*.py*")}
        levels = os.environ.get("PYPTO_WHEEL_LEVELS", "").split()
        if self.target_name != "wheel" or not levels:
            return
        for level in levels:
            self._run("-m", "kernels.cpu.build", "--level", level, "--into", str(kernels))
        build_data["force_include"][str(kernels)] = "kernels/cpu/prebuilt"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if version != "editable":
            self._folder.cleanup()

    def _run(self, *arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], cwd=self.root, check=True)
