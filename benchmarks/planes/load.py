"""Load from a process of its own."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.planes.processes import Planes, Usage

_NICE = ["nice", "-n", "19"]
_PROMPT_TOKENS = 16
_TOKENS_OF_RUNNING = 20  # of each stream, on average: by then all have begun


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """`num_streams` streams of `max_tokens` tokens each that begin together; each of `num_turns` ends before the next one begins."""

    num_streams: int
    max_tokens: int
    num_turns: int = 1
    is_nice: bool = False

    def command(self, target: str, *more: str) -> list[str]:
        """What makes it."""
        amount = [f"--concurrency={self.num_streams}", f"--requests={self.num_streams * self.num_turns}", "--warmup=1"]
        lengths = [f"--prompt-tokens={_PROMPT_TOKENS}", f"--max-tokens={self.max_tokens}"]
        nice = _NICE if self.is_nice else []
        return [*nice, sys.executable, "-m", "clients", "bench", "--target", target, *amount, *lengths, *more]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a load: what was used meanwhile, CPU seconds of the load generator, and the tokens per second that it received."""

    usage: Usage
    client_seconds: float
    tokens_per_second: float

    def microseconds_per_token(self, seconds: float) -> float:
        """CPU seconds as a share of each token."""
        return seconds * 1e6 / self.usage.num_tokens


def run_load(planes: Planes, load: StreamLoad) -> Loaded:
    """Put a load and wait for its end."""
    before, client_before = planes.usage(), _children_seconds()
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        subprocess.run(load.command(planes.target, "--json", report.name), check=True, stdout=subprocess.DEVNULL)
        (level,) = json.load(report)["levels"]
    return Loaded(planes.usage() - before, _children_seconds() - client_before, float(level["summary"]["output_tokens_per_second"]))


@contextmanager
def under_load(planes: Planes, load: StreamLoad) -> Iterator[None]:
    """Keep a load up until the block ends; it begins when all streams run."""
    enough = planes.usage().num_tokens + load.num_streams * _TOKENS_OF_RUNNING
    process = subprocess.Popen(load.command(planes.target), stdout=subprocess.DEVNULL)
    try:
        while planes.usage().num_tokens < enough:
            assert process.poll() is None, "the load ended before it was up"
            time.sleep(0.2)
        yield
        assert process.poll() is None, "the load ended while it was needed"
    finally:
        process.kill()
        process.wait()


def _children_seconds() -> float:
    """CPU time of processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
