"""The host: cores and memory that this process may use."""

import ctypes
import os
import sys
from pathlib import Path

_UNLIMITED = 1 << 60

# Of glibc's malloc.h. Blocks from _MAPPED_BYTES up, the most that glibc takes here, are mapped one by one and never kept.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES, _MAPPED_BYTES = 128 << 20, 32 << 20


def num_host_cores(root: Path = Path("/")) -> int:
    """The smaller of the cores that the process may run on and the CPU quota of its control groups; `root` is where /proc lies."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    groups = [_quota(folder / "cpu.max") for folder in _group_folders(root)]
    folders = (root / "sys/fs/cgroup" / name for name in ("cpu", "cpu,cpuacct"))  # where a container finds its own group of version 1
    version_1 = [_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us") for folder in folders]
    return max(1, min(allowed, *(quota for quota in (*groups, *version_1, allowed) if quota is not None)))


def _quota(*files: Path) -> int | None:
    """Whole cores, rounded down: threads beyond the quota make all of them wait. None: there is no quota."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
    except (OSError, ValueError):
        return None
    return None if quota in {"max", "-1"} else int(quota) // int(period)


def keep_freed_memory() -> None:
    """Let up to 128 MiB that was freed stay with the process, for tensors of the next step; before there are threads.

    What the system gets back it hands out again page by page, zeroed: for wide rows of logits that took as long as sampling them. There is
    one heap for all threads, as glibc gives those of other threads back however large they are.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # of glibc
        for name, value in ((_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _MAPPED_BYTES), (_ARENA_MAX, 1)):
            libc.mallopt(name, value)


def free_host_bytes(root: Path = Path("/")) -> int:
    """The smaller of the machine's available memory and what is left below the limit of the control group; `root` is where /proc lies.

    Control groups are that of this process and every group above it (version 2), or its memory group (version 1).
    """
    headrooms = [_headroom(folder, "memory.max", "memory.current", "inactive_file") for folder in _group_folders(root)]
    version_1 = _headroom(root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return min(_available_bytes(root / "proc/meminfo"), *headrooms, version_1)


def _available_bytes(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _group_folders(root: Path) -> list[Path]:
    """Folders of the control group of this process and of every group above it (version 2)."""
    base = root / "sys/fs/cgroup"
    group = base / _group_path(root / "proc/self/cgroup").lstrip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(base)]


def _group_path(membership: Path) -> str:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _headroom(folder: Path, limit_file: str, usage_file: str, reclaimable: str) -> int:
    try:
        limit = (folder / limit_file).read_text().strip()
        usage = int((folder / usage_file).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return _UNLIMITED
    if limit == "max" or int(limit) >= _UNLIMITED:
        return _UNLIMITED
    return max(0, int(limit) - usage + int(statistics.get(reclaimable, 0)))
