"""Cores that this process may use on the host."""

import os
import sys
from pathlib import Path

from worker.host_memory import group_folders


def num_host_cores(root: Path = Path("/")) -> int:
    """The smaller of the cores that the process may run on and the CPU quota of its control groups; `root` is where /proc lies."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    groups = [_quota(folder / "cpu.max") for folder in group_folders(root)]
    version_1 = [_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us") for folder in _version_1_folders(root)]
    return max(1, min(allowed, *(quota for quota in (*groups, *version_1, allowed) if quota is not None)))


def _version_1_folders(root: Path) -> list[Path]:
    """Where a container finds the CPU group of its own (version 1)."""
    return [root / "sys/fs/cgroup" / name for name in ("cpu", "cpu,cpuacct")]


def _quota(*files: Path) -> int | None:
    """Whole cores, rounded down: threads beyond the quota make all of them wait. None: there is no quota."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
    except (OSError, ValueError):
        return None
    return None if quota in {"max", "-1"} else int(quota) // int(period)
