"""Cores that this process may use on the host."""

import os
import sys
from pathlib import Path

from worker.host_memory import group_folders


def num_host_cores(root: Path = Path("/")) -> int:
    """The smaller of the cores that the process may run on and the CPU quota of its control groups; `root` is where /proc lies."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(allowed, *(_quota(folder / "cpu.max", allowed) for folder in group_folders(root))))


def _quota(file: Path, otherwise: int) -> int:
    """Whole cores, rounded up."""
    try:
        quota, period = file.read_text().split()
    except OSError:
        return otherwise
    return otherwise if quota == "max" else -(-int(quota) // int(period))
