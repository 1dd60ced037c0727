"""What processes have used, from /proc, and what their metrics say."""

import math
import os
import re
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r'^(?P<name>\w+)(?:\{(?:.*,)?le="(?P<bound>[^"]+)"\}|\{.*\})? (?P<value>\S+)$', re.MULTILINE)
_TIMEOUT_SECONDS = 10.0


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of processes together, threads that have ended included."""
    return sum(_cpu_seconds(Path(f"/proc/{pid}/stat")) for pid in pids)


def busiest_other_thread(pid: int) -> int:
    """The thread of a process that has used most time but for its first one."""
    threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    return max((thread for thread in threads if thread != pid), key=lambda thread: thread_seconds(pid, thread))


def thread_seconds(pid: int, thread: int) -> float:
    """User and system time of one thread."""
    return _cpu_seconds(Path(f"/proc/{pid}/task/{thread}/stat"))


def _cpu_seconds(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()  # the name before may hold anything
    return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS


def own_bytes(pids: Iterable[int]) -> int:
    """Memory that processes have for themselves, without what the kernel may take back from them at any time: pages of files."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(line.split()[1]) * 1024 for text in texts for line in text.splitlines() if line.startswith("RssAnon:"))


def available_bytes() -> int:
    """Memory that the machine can still give."""
    text = Path("/proc/meminfo").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable:"))


def children(pid: int) -> dict[int, str]:
    """Processes that a process has started, and their command lines."""
    found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return {child: Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip() for child in found}


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: how many values are at most each bound, the last of which is infinite."""

    counts: dict[float, float]

    def __add__(self, other: "Buckets") -> "Buckets":
        bounds = self.counts | other.counts
        return Buckets({bound: self.counts.get(bound, 0.0) + other.counts.get(bound, 0.0) for bound in bounds})

    def __sub__(self, earlier: "Buckets") -> "Buckets":
        return Buckets({bound: count - earlier.counts.get(bound, 0.0) for bound, count in self.counts.items()})

    def quantile(self, share: float) -> float:
        """Interpolated within its bucket; the greatest finite bound for what is beyond that. NaN without values."""
        bounds, rank = [0.0, *sorted(self.counts)], share * max(self.counts.values(), default=0.0)
        if not rank:
            return math.nan
        for low, high in pairwise(bounds):
            below, within = self.counts.get(low, 0.0), self.counts[high]
            if within >= rank:
                return low if math.isinf(high) else low + (high - low) * (rank - below) / (within - below)
        raise AssertionError(self.counts)


def scrape(port: int) -> str:
    """The exposition of a metrics endpoint of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_TIMEOUT_SECONDS) as response:
        return str(response.read(), "utf-8")


def total(exposition: str, name: str) -> float:
    """A counter or gauge, summed over its labels."""
    return sum(float(sample["value"]) for sample in _SAMPLE.finditer(exposition) if sample["name"] == name)


def buckets(exposition: str, name: str) -> Buckets:
    """A histogram, summed over its other labels."""
    counts: dict[float, float] = {}
    for sample in _SAMPLE.finditer(exposition):
        if sample["name"] == f"{name}_bucket":
            bound = float(sample["bound"])
            counts[bound] = counts.get(bound, 0.0) + float(sample["value"])
    return Buckets(counts)
