"""Cores and memory of a machine and of a control group, read from a made-up /proc and /sys; and what a process keeps of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.host import free_host_bytes, num_host_cores


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("limit", "cores"),
    [(None, 8), ("max 100000", 8), ("200000 100000", 2), ("150000 100000", 1), ("1000 100000", 1), ("9900000 100000", 8)],
)
def test_hst_02_quota_bounds_the_cores(tmp_path: Path, limit: str | None, cores: int) -> None:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    if limit is not None:
        (folder / "cpu.max").write_text(f"{limit}\n")
    assert num_host_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2), ("350000", 3), ("1000", 1)])
def test_hst_02_quota_of_version_1_bounds_the_cores(tmp_path: Path, folder: str, quota: str, cores: int) -> None:
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert num_host_cores(tmp_path) == cores


GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n")
    return tmp_path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def write_group(folder: Path, limit: object, usage: int, inactive_file: int = 0) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", usage)
    write(folder / "memory.stat", f"anon 5\ninactive_file {inactive_file}")


def test_available_memory_without_a_group(root: Path) -> None:
    assert free_host_bytes(root) == 32 * GIB


def test_group_without_a_limit(root: Path) -> None:
    write_group(root / "sys/fs/cgroup", "max", 3 * GIB)
    assert free_host_bytes(root) == 32 * GIB


def test_group_limit_less_what_is_used_and_cannot_be_reclaimed(root: Path) -> None:
    write_group(root / "sys/fs/cgroup", 8 * GIB, 3 * GIB, inactive_file=GIB)
    assert free_host_bytes(root) == 6 * GIB


def test_tightest_of_nested_groups(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/slice/service")
    write_group(root / "sys/fs/cgroup/slice", 4 * GIB, GIB)
    write_group(root / "sys/fs/cgroup/slice/service", 6 * GIB, GIB)
    assert free_host_bytes(root) == 3 * GIB


def test_group_of_version_1(root: Path) -> None:
    folder = root / "sys/fs/cgroup/memory"
    write(folder / "memory.limit_in_bytes", 2 * GIB)
    write(folder / "memory.usage_in_bytes", GIB)
    write(folder / "memory.stat", "total_inactive_file 0")
    assert free_host_bytes(root) == GIB


def test_this_machine_has_memory() -> None:
    assert free_host_bytes() > 0


_PAGE_FAULTS_OF_A_THREAD = """
import resource, threading
from worker.host import keep_freed_memory

def allocate():
    bytearray(10 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        bytearray(10 << 20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

keep_freed_memory()
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="the allocator is that of glibc")
def test_a_thread_finds_the_memory_that_it_has_freed() -> None:
    faults = subprocess.run([sys.executable, "-c", _PAGE_FAULTS_OF_A_THREAD], check=True, capture_output=True, text=True).stdout
    assert int(faults) < (10 << 20) // os.sysconf("SC_PAGE_SIZE")  # of 20 times as many
