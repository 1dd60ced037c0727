"""Runs a module as a child that ends with its parent, however that ends: python -m pypto_serving.process.tied PARENT MODULE ARGUMENTS.

PARENT is the id of the process that starts it. Linux sends the child SIGTERM when that has ended; elsewhere it goes on alone.
"""

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of `python -m module`, tied to this process."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments]


def _main() -> None:
    _, parent, module, *arguments = sys.argv
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it ended before that
            sys.exit(0)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
