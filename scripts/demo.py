"""The demo: starts a control plane and two workers, streams one answer of a real model, and shows that answers are deterministic.

python scripts/demo.py --model DIR [--device cpu] [--prompt TEXT]
"""

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import grpc.aio

from clients.async_client import AsyncClient
from clients.cli.verify import Comparison, Report, until_preempted
from clients.determinism import REQUESTS, other_requests, record, record_among, record_meanwhile
from clients.request import Request
from clients.stream_state import StreamState
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc

LOG_DIRECTORY = Path("build/demo")
PROMPT = "What is the capital of France? Answer in one sentence."
_NUM_OTHERS = 31
_MAX_TOKENS = 16
#: So few of 16 tokens that 31 others do not fit into two workers.
_NUM_PAGES = "36"


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--device", default="cpu", help="device of the workers (default: %(default)s)")
    parser.add_argument("--prompt", default=PROMPT, help="what to ask (default: %(default)s)")
    options = parser.parse_args()
    port, announce_port, metrics_port, admin_port, *ports = free_ports(8)
    control = ["control_plane", "--model", options.model, "--port", port, "--announce-port", announce_port, "--metrics-port", metrics_port]
    control += ["--admin-port", admin_port, "--frontends", "0"]
    workers = {f"127.0.0.1:{ports[index]}": _worker(options, ports[index], ports[index + 2]) for index in range(2)}
    control += [word for address in workers for word in ("--worker", address)]
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(running(command, name)) for name, command in {"control_plane": control, **workers}.items()}
        target = ["--target", f"127.0.0.1:{port}"]
        print("Starting one control plane and two workers ...", flush=True)
        started = time.monotonic()
        if not _become_ready(processes, target):
            print(f"They did not become ready; their logs are in {LOG_DIRECTORY}/", file=sys.stderr)
            return 1
        print(f"Ready after {time.monotonic() - started:.1f} s.\n\n> {options.prompt}", flush=True)
        question = ["generate", options.prompt, "--temperature", "0", "--max-tokens", "64", *target]
        exit_code = subprocess.run([sys.executable, "-m", "clients", *question], check=False).returncode
        if exit_code == 0:
            exit_code = asyncio.run(_show_determinism(f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}", processes, stack, workers))
    print("\nServe it yourself: pypto-serving serve --model DIR, which `pypto-serving serve --help` explains.")
    return exit_code


def _worker(options: argparse.Namespace, port: str, metrics_port: str) -> list[str]:
    threads = str(max(1, (os.cpu_count() or 2) // 2))
    command = ["worker", "--model", options.model, "--device", options.device, "--port", port, "--metrics-port", metrics_port]
    return [*command, "--num-pages", _NUM_PAGES, "--threads", threads]


async def _show_determinism(
    target: str,
    admin: str,
    processes: dict[str, subprocess.Popen[bytes]],
    stack: contextlib.ExitStack,
    workers: Mapping[str, Sequence[str]],
) -> int:
    """Ask the same under four circumstances, and print the hashes of what came; returns 1 if any differ, or nothing was preempted."""
    print(f"\nThe same request, alone, among others, preempted, and with its worker killed: hashes of {_MAX_TOKENS} tokens, and of their")
    print("log probabilities with five alternatives each, as they were received.")
    report = Report()
    await _two_workers(admin)
    async with AsyncClient(target) as client, grpc.aio.insecure_channel(admin) as channel:
        for name, request in REQUESTS.items():
            asked, comparison = replace(request, max_tokens=_MAX_TOKENS), report.begin(name)
            comparison.add("alone", await record(client, asked))
            recording, num_beside = await record_among(client, asked, other_requests(_NUM_OTHERS, 2 * _MAX_TOKENS))
            comparison.add(f"among {_NUM_OTHERS} others, {num_beside} at its side", recording)
            if not await until_preempted(client, asked, _NUM_OTHERS, comparison):
                return 1
            address = await _with_its_worker_killed(client, channel, asked, processes, comparison)
            processes[address] = stack.enter_context(running(workers[address], address))
            await _two_workers(admin)
    report.end()
    return 0 if report.is_identical else 1


async def _with_its_worker_killed(
    client: AsyncClient, admin: grpc.aio.Channel, request: Request, processes: Mapping[str, subprocess.Popen[bytes]], comparison: Comparison
) -> str:
    """Kill the worker in the middle of the answer; returns its address."""
    killed: list[str] = []

    async def kill(state: StreamState) -> None:
        asked = admin_pb2.GetStateRequest(with_sequences=True)
        sequences = (await admin_pb2_grpc.AdminServiceStub(admin).GetState(asked)).sequences
        (address,) = {sequence.worker for sequence in sequences if sequence.request_id == state.request_id}
        processes[address].kill()
        killed.append(address)

    half = _MAX_TOKENS // 2
    recording = await record_meanwhile(client, request, half, kill)
    comparison.add(f"its worker killed (SIGKILL) after {half} tokens", recording)
    return killed[0]


async def _two_workers(admin: str) -> None:
    """Wait until both are in session."""
    async with grpc.aio.insecure_channel(admin) as channel:
        while len((await admin_pb2_grpc.AdminServiceStub(channel).GetState(admin_pb2.GetStateRequest())).workers) < 2:
            await asyncio.sleep(0.2)


def free_ports(count: int) -> list[str]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def running(arguments: Sequence[str], name: str, stop_seconds: float = 40.0) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of ours until the block ends; its log goes to a file of that name."""
    LOG_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with _log_of(name).open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _become_ready(processes: Mapping[str, subprocess.Popen[bytes]], target: Sequence[str]) -> bool:
    """Wait until the control plane serves; False when the time is over or a process has ended, whose last lines are shown."""
    waiting = subprocess.Popen([sys.executable, "-m", "clients", "health", "--wait", "120", *target], stdout=subprocess.DEVNULL)
    try:
        while waiting.poll() is None:
            if ended := ended_among(processes):
                print(ended, file=sys.stderr)
                return False
            time.sleep(0.1)
    finally:
        waiting.kill()
        waiting.wait()
    return waiting.returncode == 0


def ended_among(processes: Mapping[str, subprocess.Popen[bytes]]) -> str:
    """What a process that has ended said last; empty while all run."""
    for name, process in processes.items():
        if process.poll() is not None:
            lines = _log_of(name).read_text(errors="replace").splitlines()[-5:]
            return "\n".join([f"{name} ended with exit code {process.returncode}:", *lines])
    return ""


def _log_of(name: str) -> Path:
    return LOG_DIRECTORY / f"{name.replace(':', '_')}.log"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
