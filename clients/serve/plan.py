"""Which processes a service has, and what they are told."""

import argparse
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec

from pypto_serving.process.address import join_address

#: Name, module, arguments, and the message and the loggers that say that it serves.
Program = tuple[str, str, Sequence[str], tuple[str, tuple[str, ...]]]

_CONTROL_SERVES = ("serving", ("control_plane.edge.server.one_process", "control_plane.edge.supervisor"))
_GATEWAY_SERVES = ("serving", ("clients.gateway",))
_WORKER_SERVES = ("session opened", ("worker.service",))  # the control plane has found it

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Plan:
    """`front` ends before the workers do; `ready_line` says where they are reached."""

    front: tuple[Program, ...]
    workers: tuple[Program, ...]
    ready_line: str


def has_gateway() -> bool:
    """Whether the gateway's packages are installed."""
    return all(find_spec(package) is not None for package in ("fastapi", "uvicorn", "uvloop"))


def plan(arguments: argparse.Namespace, model: str) -> Plan:
    """What the flags of `serve` ask for."""
    log = ["--log-format", "json", "--log-level", "debug" if arguments.log_level == "debug" else "info"]
    port, *worker_ports = _ports(arguments.port, arguments.workers)
    host = _WILDCARDS.get(arguments.host, arguments.host)
    metrics = f"http://{join_address(host, arguments.metrics_port)}/metrics"
    workers = [f"127.0.0.1:{worker_port}" for worker_port in worker_ports]
    control = ["--model", model, "--host", arguments.host, "--port", str(port), "--announce-port", "0"]
    control += ["--metrics-port", str(arguments.metrics_port), "--admin-port", str(arguments.admin_port)]
    control += [word for address in workers for word in ("--worker", address)]
    front: list[Program] = [("control", "control_plane", [*control, *log, *arguments.control_args], _CONTROL_SERVES)]
    served = f"serving: gRPC on {join_address(host, port)}"
    if arguments.gateway:
        gateway = ["--host", arguments.host, "--port", str(arguments.http_port), "--target", join_address(host, port)]
        gateway += ["--admin-target", f"127.0.0.1:{arguments.admin_port}", "--metrics-url", metrics, *log, *arguments.gateway_args]
        front.append(("gateway", "clients.gateway", gateway, _GATEWAY_SERVES))
        served += f", OpenAI's API on http://{join_address(host, arguments.http_port)}/v1"
    served += f", metrics on {metrics}, operators on 127.0.0.1:{arguments.admin_port}"
    programs: list[Program] = [
        (f"worker-{index}", "worker", _worker(arguments, model, index, worker_port, log), _WORKER_SERVES)
        for index, worker_port in enumerate(worker_ports)
    ]
    return Plan(tuple(front), tuple(programs), served)


def _worker(arguments: argparse.Namespace, model: str, index: int, port: int, log: Sequence[str]) -> list[str]:
    command = ["--model", model, "--device", arguments.device, "--port", str(port), "--metrics-port", "0"]
    if arguments.workers > 1 and arguments.device in ("cuda", "npu"):
        command += ["--device-index", str(index)]
    elif arguments.workers > 1:
        command += ["--threads", str(max(1, len(os.sched_getaffinity(0)) // arguments.workers))]
    return [*command, *log, *arguments.worker_args]


def _ports(wanted: int, num_others: int) -> list[int]:
    """`wanted`, or where it is 0 any free port, and so many other free ones."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_others + 1)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        first, *others = (int(each.getsockname()[1]) for each in sockets)
    return [wanted or first, *others]
