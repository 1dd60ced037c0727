"""A control plane and null workers as processes of their own."""

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.planes.usage import (
    Buckets,
    buckets,
    busiest_other_thread,
    children,
    cpu_seconds,
    own_bytes,
    scrape,
    thread_seconds,
    total,
)
from clients.async_client import AsyncClient
from clients.errors import ServingError
from scripts.demo import free_ports

_READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
_IDLE_GAP = "pypto_serving_worker_device_idle_gap_seconds"
_TOKENS = "pypto_serving_worker_sampled_tokens_total"
_TOKENS_PER_PAGE = 16
_PART = re.compile(r"--part[ =](\w+)")


@dataclass(frozen=True, slots=True)
class Setup:
    """What is started; `num_frontends` 0 is a control plane in one process."""

    model: Path
    num_frontends: int = 0
    num_workers: int = 1
    lanes: int = 256  # of each worker
    step_ms: float = 5.0
    max_model_len: int = 2048
    max_step_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds, tokens, and gaps in seconds in which devices waited, so far or within a while."""

    scheduler: float
    frontends: float
    workers: float
    num_tokens: float
    idle_gaps: Buckets

    def __sub__(self, earlier: "Usage") -> "Usage":
        return Usage(
            self.scheduler - earlier.scheduler,
            self.frontends - earlier.frontends,
            self.workers - earlier.workers,
            self.num_tokens - earlier.num_tokens,
            self.idle_gaps - earlier.idle_gaps,
        )


class Planes:
    """Both planes, on free ports. Use it as a context manager."""

    def __init__(self, setup: Setup) -> None:
        self._stack = ExitStack()
        self._one_process = not setup.num_frontends
        port, announce_port, metrics_port, admin_port, *worker_ports = free_ports(4 + 2 * setup.num_workers)
        self.target, self.admin_target = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
        self._log = self._stack.enter_context(tempfile.NamedTemporaryFile("w"))  # noqa: SIM115
        self._worker_metrics = [int(port) for port in worker_ports[1::2]]
        addresses = worker_ports[::2]
        ports = zip(addresses, worker_ports[1::2], strict=True)
        self._workers = [self._start(_worker(setup, *pair)) for pair in ports]
        dialled = [flag for address in addresses for flag in ("--worker", f"127.0.0.1:{address}")]
        own = ["--port", port, "--announce-port", announce_port, "--metrics-port", metrics_port, "--admin-port", admin_port]
        self._control = self._start([*_control(setup), *own, *dialled])
        try:
            asyncio.run(self._wait_until_ready(setup))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "Planes":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def usage(self) -> Usage:
        """What has been used so far."""
        expositions = [scrape(port) for port in self._worker_metrics]
        gaps = Buckets({})
        for exposition in expositions:
            gaps += buckets(exposition, _IDLE_GAP)
        scheduler, frontends = self._control_seconds()
        return Usage(scheduler, frontends, cpu_seconds(self._workers), sum(total(text, _TOKENS) for text in expositions), gaps)

    def frontend_bytes(self) -> int:
        """Memory of the processes that hold clients' streams."""
        return own_bytes(self._frontends())

    def _control_seconds(self) -> tuple[float, float]:
        """Of scheduler and front ends; in one process the scheduler is the engine's thread, and all else is a front end."""
        if self._one_process:
            scheduler = thread_seconds(self._control, busiest_other_thread(self._control))
            return scheduler, cpu_seconds([self._control]) - scheduler
        frontends = self._frontends()
        return cpu_seconds(self._parts().keys() - frontends), cpu_seconds(frontends)

    def _frontends(self) -> list[int]:
        return [self._control] if self._one_process else [pid for pid, part in self._parts().items() if part != "scheduler"]

    def _parts(self) -> dict[int, str]:
        """Children of the supervisor, which tells them that they are the scheduler, or the front end of a number."""
        return {pid: match[1] for pid, command in children(self._control).items() if (match := _PART.search(command))}

    def _start(self, arguments: Sequence[str]) -> int:
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=self._log, stderr=self._log)
        self._stack.callback(_stop, process)
        return process.pid

    async def _wait_until_ready(self, setup: Setup) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        async with AsyncClient(self.target, connect_seconds=0.0) as client:
            while True:
                try:
                    if (await client.server()).num_workers == setup.num_workers and await client.is_serving():
                        return
                except ServingError:
                    pass
                assert time.monotonic() < deadline, Path(self._log.name).read_text()
                await asyncio.sleep(0.1)


class BareServer:
    """The process to compare front ends with. Use it as a context manager."""

    def __init__(self, step_ms: float) -> None:
        self._stack = ExitStack()
        (port,) = free_ports(1)
        self.target = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "benchmarks.planes.bare_server", port, str(step_ms)]
        self._process = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        self._stack.callback(_stop, self._process)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def __enter__(self) -> "BareServer":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def cpu_seconds(self) -> float:
        """What it has used so far."""
        return cpu_seconds([self._process.pid])


def _worker(setup: Setup, port: str, metrics_port: str) -> list[str]:
    num_pages = setup.lanes * (setup.max_model_len // _TOKENS_PER_PAGE + 1)
    sizes = [f"--max-lanes={setup.lanes}", f"--max-step-tokens={setup.max_step_tokens}", f"--num-pages={num_pages}"]
    timing = ["--device=null", f"--step-ms={setup.step_ms}", "--threads=1", f"--max-model-len={setup.max_model_len}"]
    return ["worker", "--model", str(setup.model), "--port", port, "--metrics-port", metrics_port, *timing, *sizes]


def _control(setup: Setup) -> list[str]:
    sizes = [
        f"--max-num-seqs={setup.lanes}",
        f"--max-step-tokens={setup.max_step_tokens}",
        "--max-queued-requests=100000",
        "--drain-seconds=0",
    ]
    return ["control_plane", "--model", str(setup.model), f"--frontends={setup.num_frontends}", *sizes]


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
