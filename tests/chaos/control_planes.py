"""The forms of a control plane: one process, a scheduler and front ends under a supervisor, schedulers that stand by for each other."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from chaos.supervised_process import SupervisedProcess, children
from fakes.network.tcp_proxy import TcpProxy
from harness.processes import fixed_ports

_LEASE_SECONDS = "1"
_CALLS = ("--drain-seconds", "2", "--scheduler-grace-seconds", "240")  # a plan may kill schedulers without a pause


class ControlPlane(Protocol):
    """What a cluster needs of its control plane."""

    @property
    def processes(self) -> dict[str, SupervisedProcess]:
        """Those that are started again, by name."""

    @property
    def pids(self) -> dict[str, int]:
        """Ids of all that run now, by name."""

    @property
    def proxies(self) -> Sequence[TcpProxy]:
        """Where clients connect."""

    @property
    def call_ports(self) -> Sequence[int]:
        """Where they do so without a proxy."""

    @property
    def admin_port(self) -> int:
        """Of an admin service."""

    def metrics(self) -> dict[str, float]:
        """Samples of the process that has the engine."""


class OneProcess:
    """clients --proxy--> control plane --> workers."""

    num_front_ends = 0  # apart from the scheduler

    def __init__(self, flags: Sequence[str], worker_flags: Sequence[str], logs: Path | None) -> None:
        """`worker_flags` are for whatever dials workers. Without `logs` it writes into a pipe that nobody reads."""
        port, self.admin_port, announce_port = fixed_ports(3)
        numbers = {"--frontends": self.num_front_ends, "--admin-port": self.admin_port, "--announce-port": announce_port}
        given = [word for flag, number in numbers.items() for word in (flag, str(number))]
        arguments = ["control_plane", *flags, *worker_flags, *_CALLS, *given]
        proxy = TcpProxy(f"127.0.0.1:{port}", *fixed_ports(1))
        self.process = SupervisedProcess(arguments, port, proxy, logs / "control-plane.log" if logs else None)
        self.processes = {"control plane": self.process}
        self.proxies = [proxy]
        self.call_ports = [port]

    @property
    def pids(self) -> dict[str, int]:
        return {"control plane": self.process.pid}

    def metrics(self) -> dict[str, float]:
        return self.process.metrics()


class Supervised(OneProcess):
    """
    clients --proxy--> front end 0 | --socket--> scheduler --> workers
                       front end 1 |
    """

    num_front_ends = 2

    def __init__(self, flags: Sequence[str], worker_flags: Sequence[str], logs: Path) -> None:
        super().__init__(flags, worker_flags, logs)
        self._num_frozen = 0

    @property
    def pids(self) -> dict[str, int]:
        return super().pids | self._parts()

    def send(self, part: str, number: signal.Signals) -> None:
        """Signal a part, if it runs, and all have served before."""
        pid = self._parts().get(part)
        if pid is not None and self.process.has_logged(b'"frontends":'):
            os.kill(pid, number)

    async def freeze(self, part: str, seconds: float) -> None:
        """Stop a part for a while."""
        pid = self._parts().get(part)
        if pid is not None:
            self._num_frozen += 1
            self.send(part, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            self._num_frozen -= 1
            if pid in self._parts().values():
                os.kill(pid, signal.SIGCONT)

    async def kill_all(self) -> None:
        """Kill the supervisor, whose children end by themselves. Not while one is frozen, which keeps the port from the next ones."""
        while self._num_frozen:
            await asyncio.sleep(0.05)
        self.process.kill()

    def _parts(self) -> dict[str, int]:
        """Ids of the processes that run, by the name that the supervisor gives them."""
        parts = {}
        for pid in children(self.process.pid):
            arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--part" in arguments:
                parts[arguments[arguments.index("--part") + 1]] = pid
        return parts


class StandingBy:
    """
    clients --proxy--> front end 0 --proxy--> scheduler 0 or 1, whichever holds the lease --> workers
    clients --proxy--> front end 1 --proxy--> scheduler 0 or 1
    """

    def __init__(self, flags: Sequence[str], worker_flags: Sequence[str], logs: Path) -> None:
        self._lease = logs / "lease"
        scheduler_flags = [*worker_flags, "--lease-file", str(self._lease), "--lease-seconds", _LEASE_SECONDS]
        self.schedulers = []
        for index, (port, proxy_port, announce_port) in enumerate(_ports(2, 3)):
            arguments = ["control_plane.scheduler", *flags, *scheduler_flags, "--announce-port", str(announce_port)]
            log = logs / f"scheduler-{index}.log"
            proxy = TcpProxy(f"127.0.0.1:{port}", proxy_port)
            self.schedulers.append(SupervisedProcess(arguments, port, proxy, log, "--frontend-port", excuse=b"the lease is lost"))
        scheduler_addresses = [flag for scheduler in self.schedulers for flag in ("--scheduler", scheduler.proxy.address)]
        self.front_ends = []
        for index, (port, proxy_port, self.admin_port) in enumerate(_ports(2, 3)):
            arguments = ["control_plane.frontend", *flags, *_CALLS, *scheduler_addresses, "--admin-port", str(self.admin_port)]
            proxy = TcpProxy(f"127.0.0.1:{port}", proxy_port)
            self.front_ends.append(SupervisedProcess(arguments, port, proxy, logs / f"front-end-{index}.log"))
        self.processes = {f"scheduler {index}": scheduler for index, scheduler in enumerate(self.schedulers)}
        self.processes |= {f"front end {index}": front_end for index, front_end in enumerate(self.front_ends)}

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self.processes.items()}

    @property
    def proxies(self) -> list[TcpProxy]:
        return [front_end.proxy for front_end in self.front_ends]

    @property
    def call_ports(self) -> list[int]:
        return [front_end.port for front_end in self.front_ends]

    @property
    def in_charge(self) -> SupervisedProcess:
        """The scheduler that holds the lease, or the first one."""
        holder = json.loads(self._lease.read_text())["holder"] if self._lease.exists() else ""
        return next((scheduler for scheduler in self.schedulers if f"-{scheduler.pid}-" in holder), self.schedulers[0])

    def metrics(self) -> dict[str, float]:
        return self.in_charge.metrics()


def _ports(num: int, each: int) -> list[list[int]]:
    """Ports for `num` processes."""
    return [fixed_ports(each) for _ in range(num)]
