"""How much memory, and how many file descriptors and threads processes have over time."""

import asyncio
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_SECONDS = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEASURED = ("resident_bytes", "num_descriptors", "num_threads")


@dataclass(frozen=True)
class Sample:
    """One look at a process."""

    at: float  # seconds since the beginning
    resident_bytes: int
    num_descriptors: int
    num_threads: int


class MemoryLog:
    """Looks at processes again and again; a life that ends takes its samples along."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        """`pids` of what runs now, by name."""
        self._pids = pids
        self._samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)  # by name and process id

    async def run(self) -> None:
        """Until cancelled."""
        began = time.monotonic()
        while True:
            for name, pid in self._pids().items():
                sample = _look_at(pid, time.monotonic() - began)
                if sample is not None:
                    self._samples[name, pid].append(sample)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def growth(self, seconds: float) -> dict[str, dict[str, tuple[float, float]]]:
        """Medians in the middle and the last third of so many seconds, by process and what was measured; of lives that span both."""
        found = {}
        for name, pid in self._pids().items():
            samples = self._samples[name, pid]
            if samples and samples[0].at < seconds / 3:
                middle = [sample for sample in samples if seconds / 3 <= sample.at < seconds * 2 / 3]
                last = [sample for sample in samples if seconds * 2 / 3 <= sample.at < seconds]
                found[name] = {
                    what: (
                        statistics.median(getattr(each, what) for each in middle),
                        statistics.median(getattr(each, what) for each in last),
                    )
                    for what in _MEASURED
                }
        return found


def _look_at(pid: int, at: float) -> Sample | None:
    directory = Path(f"/proc/{pid}")
    try:
        resident_pages = int((directory / "statm").read_text().split()[1])
        return Sample(at, resident_pages * _PAGE_BYTES, len(os.listdir(directory / "fd")), len(os.listdir(directory / "task")))
    except OSError:  # it has just died
        return None
