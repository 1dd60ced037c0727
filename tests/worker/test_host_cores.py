"""Cores of a control group, read from a made-up /sys."""

import os
from pathlib import Path

import pytest

from worker.host_cores import num_host_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


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


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2), ("350000", 3), ("1000", 1)])
def test_hst_02_quota_of_version_1_bounds_the_cores(tmp_path: Path, folder: str, quota: str, cores: int) -> None:
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert num_host_cores(tmp_path) == cores
