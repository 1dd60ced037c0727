"""The demo: starts a control plane and a worker, streams one answer of a real model, and stops both.

python scripts/demo.py --model DIR [--device cpu] [--prompt TEXT]
"""

import argparse
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LOG_DIRECTORY = Path("build/demo")
PROMPT = "What is the capital of France? Answer in one sentence."


def main() -> int:
    """Run the demo; returns the exit code of the client."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--device", default="cpu", help="device of the worker (default: %(default)s)")
    parser.add_argument("--prompt", default=PROMPT, help="what to ask (default: %(default)s)")
    options = parser.parse_args()
    port, announce_port, metrics_port, worker_port, worker_metrics_port = free_ports(5)
    control = ["control_plane", "--model", options.model, "--port", port, "--announce-port", announce_port, "--metrics-port", metrics_port]
    control += ["--worker", f"127.0.0.1:{worker_port}"]
    worker = ["worker", "--model", options.model, "--device", options.device, "--port", worker_port, "--metrics-port", worker_metrics_port]
    with running(control) as control_process, running(worker) as worker_process:
        target = ["--target", f"127.0.0.1:{port}"]
        print("Starting one control plane and one worker ...", flush=True)
        started = time.monotonic()
        if not _become_ready({"control_plane": control_process, "worker": worker_process}, target):
            print(f"They did not become ready; their logs are in {LOG_DIRECTORY}/", file=sys.stderr)
            return 1
        print(f"Ready after {time.monotonic() - started:.1f} s.\n\n> {options.prompt}", flush=True)
        question = ["generate", options.prompt, "--temperature", "0", "--max-tokens", "64", *target]
        exit_code = subprocess.run([sys.executable, "-m", "clients", *question], check=False).returncode
    print("\nServe it yourself: make serve-control, make serve-worker, and make serve-http for OpenAI's API on http://127.0.0.1:8000/v1")
    return exit_code


def free_ports(count: int) -> list[str]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def running(arguments: Sequence[str], stop_seconds: float = 40.0) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of ours until the block ends; its log goes to a file."""
    LOG_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with _log_of(arguments[0]).open("w") as log:
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
    return LOG_DIRECTORY / f"{name}.log"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
