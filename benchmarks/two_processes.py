"""A control plane and a worker as users run them, loaded by `python -m clients bench`."""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.report import Row, row_against_limit
from clients.async_client import AsyncClient
from scripts.demo import free_ports

_CONCURRENCY = 8


class TwoProcesses:
    """Both processes with their defaults but for `worker_flags`, on free ports. Use it as a context manager."""

    def __init__(self, model: Path, worker_flags: Sequence[str] = ()) -> None:
        self._stack = ExitStack()
        port, announce_port, worker_port, self._metrics_port, worker_metrics_port = free_ports(5)
        self._target = f"127.0.0.1:{port}"
        self.seconds_to_ready: dict[str, float] = {}
        self.summary: dict[str, Any] = {}  # of the last load, as the load generator reports it
        worker = ["worker", "--device", "cpu", "--port", worker_port, "--metrics-port", worker_metrics_port]
        control = ["control_plane", "--port", port, "--announce-port", announce_port, "--metrics-port", self._metrics_port]
        self._worker_pid = self._start([*worker, "--model", str(model), *worker_flags])
        self._start([*control, "--model", str(model), "--worker", f"127.0.0.1:{worker_port}"])
        subprocess.run(
            [sys.executable, "-m", "clients", "health", "--wait", "120", "--target", self._target], check=True, stdout=subprocess.DEVNULL
        )

    def __enter__(self) -> "TwoProcesses":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, arguments: list[str]) -> int:
        """Start a module of ours and note how long it takes until it serves; returns its process id."""
        begun = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", *arguments, "--log-format", "json"], stderr=subprocess.PIPE, text=True)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while '"message": "serving"' not in lines[-1]:
            assert lines[-1], "".join(lines)
            lines.append(process.stderr.readline())
        self.seconds_to_ready[arguments[0]] = time.perf_counter() - begun
        threading.Thread(target=process.stderr.read, daemon=True).start()
        return process.pid

    def tokens_per_second(self, streams: int, prompt_tokens: int, max_tokens: int) -> float:
        """Generated tokens per second of `streams` greedy requests of fixed lengths that begin together; the server's counts must agree."""
        self.summary = self._load(streams, prompt_tokens, max_tokens)["summary"]
        return float(self.summary["output_tokens_per_second"])

    def load_random_lengths(self, count: int, longest: int) -> None:
        """Send `count` prompts of 1 to `longest` random tokens, a few at a time, and take one token of each."""
        asyncio.run(self._load_random_lengths(count, longest))

    async def _load_random_lengths(self, count: int, longest: int) -> None:
        async with AsyncClient(self._target) as client:
            (model, *_), gate = await client.models(), asyncio.Semaphore(_CONCURRENCY)

            async def load() -> None:
                async with gate:
                    token_ids = random.choices(range(model.vocab_size), k=random.randint(1, longest))
                    await client.generate(token_ids=token_ids, max_tokens=1, ignore_eos=True, temperature=0.0)

            await asyncio.gather(*(load() for _ in range(count)))

    def worker_resident_bytes(self) -> int:
        """Memory of the worker that is in use now, mapped files that it reads included."""
        lines = Path(f"/proc/{self._worker_pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def _load(self, streams: int, prompt_tokens: int, max_tokens: int) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
            lengths = ["--prompt-tokens", str(prompt_tokens), "--max-tokens", str(max_tokens)]
            amount = ["--concurrency", str(streams), "--requests", str(streams), "--warmup", "1", "--seed", str(time.time_ns() % 2**31)]
            checks = ["--metrics", f"http://127.0.0.1:{self._metrics_port}/metrics", "--json", report.name]
            command = [sys.executable, "-m", "clients", "bench", "--target", self._target, *lengths, *amount, *checks]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (level,) = json.load(report)["levels"]
            return dict(level)


def start_row(processes: TwoProcesses, max_seconds: float) -> Row:
    """How soon the worker serves, against what it may take."""
    return row_against_limit("start to serving", processes.seconds_to_ready["worker"], max_seconds, "s")
