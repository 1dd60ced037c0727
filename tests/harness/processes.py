"""Our processes, started for real on free ports, for integration tests."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_START_SECONDS = 60.0
_STOP_SECONDS = 40.0

_CHANCE = random.SystemRandom()  # whatever seed a test has set
_given_ports: set[int] = set()


class ServingProcess:
    """`python -m MODULE --model DIR` on free ports, without a model whatever the flags say.

    Leaving the `with` block stops it with SIGTERM, or kills what does not stop.
    """

    def __init__(self, module: str, model: Path | None, *flags: str) -> None:
        arguments = ["--log-format", "json", *flags]
        port_flag = "--frontend-port" if module == "control_plane.scheduler" else "--port"
        if model is not None:
            arguments += ["--model", str(model), "--metrics-port", "0", *([] if port_flag in flags else [port_flag, "0"])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        self._serving = threading.Event()
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            event = json.loads(line) if line.startswith("{") else {"message": line.rstrip()}
            self.events.append(event)
            if event["message"] == "serving":
                self._serving.set()
        self._serving.set()

    @property
    def start_event(self) -> dict[str, Any]:
        """The log event of the start, waited for."""
        assert self._serving.wait(_START_SECONDS), f"not serving after {_START_SECONDS} s: {self.events}"
        found = [event for event in self.events if event["message"] == "serving"]
        assert found, f"exited with {self._process.poll()}: {self.events}"
        return found[0]

    @property
    def address(self) -> str:
        """host:port of the gRPC server."""
        return str(self.start_event["address"])

    @property
    def metrics_url(self) -> str:
        """Where Prometheus scrapes."""
        return f"http://{self.start_event['metrics']}/metrics"

    @property
    def parts(self) -> dict[str, int]:
        """Process ids of the children of a supervisor, by what each of them is."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        commands = {int(child): Path(f"/proc/{child}/cmdline").read_text().split("\0") for child in children}
        return {words[words.index("--part") + 1]: child for child, words in commands.items() if "--part" in words}

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def wait(self, seconds: float = _STOP_SECONDS) -> int:
        """Wait for the end; returns the exit code."""
        return self._process.wait(seconds)

    def wait_until_ready(self) -> "ServingProcess":
        """Wait until the health service says SERVING."""
        with grpc.insecure_channel(self.address) as channel:
            for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=_START_SECONDS):
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return self
        raise AssertionError(f"not ready after {_START_SECONDS} s: {self.events}")

    def __enter__(self) -> "ServingProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


def fixed_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that no outgoing connection gets while a process that had one is down; none is given twice."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = _CHANCE.randrange(20_000, 32_000)
            listening = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listening.bind(("127.0.0.1", port))
                ports += {port} - _given_ports
                _given_ports.add(port)
    return ports


def worker(model: Path, *flags: str) -> ServingProcess:
    """A worker on the CPU with one thread and a small cache."""
    defaults = ["--device", "cpu", "--threads", "1"]
    if "--num-pages" not in flags:
        defaults += ["--num-pages", "512"]
    return ServingProcess("worker", model, *defaults, *flags)


def scheduler(model: Path, workers: Sequence[ServingProcess], *flags: str) -> ServingProcess:
    """A scheduler alone, which dials `workers`."""
    dialled = [flag for each in workers for flag in ("--worker", each.address)]
    return ServingProcess("control_plane.scheduler", model, "--announce-port", "0", *dialled, *flags)


def front_end(model: Path, schedulers: Sequence[str], *flags: str) -> ServingProcess:
    """A front end alone, which dials schedulers at these addresses."""
    return ServingProcess("control_plane.frontend", model, *(flag for each in schedulers for flag in ("--scheduler", each)), *flags)


def control_plane(model: Path, workers: Sequence[ServingProcess | str], *flags: str) -> ServingProcess:
    """A control plane that dials `workers`."""
    addresses = [each if isinstance(each, str) else each.address for each in workers]
    dialled = [flag for address in addresses for flag in ("--worker", address)]
    processes = () if "--frontends" in flags else ("--frontends", "0")
    return ServingProcess("control_plane", model, "--announce-port", "0", *processes, *dialled, *flags)
