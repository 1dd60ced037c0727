"""The demo: starts a control plane and a worker, streams one answer of a real model, and stops both.

python scripts/demo.py --model DIR [--device cpu] [--prompt TEXT]
"""

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
    with _running(control), _running(worker):
        target = ["--target", f"127.0.0.1:{port}"]
        print("Starting one control plane and one worker ...", flush=True)
        started = time.monotonic()
        if _client("health", "--wait", "120", *target).returncode:
            print(f"They did not become ready; their logs are in {LOG_DIRECTORY}/", file=sys.stderr)
            return 1
        print(f"Ready after {time.monotonic() - started:.1f} s.\n\n> {options.prompt}", flush=True)
        return _client("generate", options.prompt, "--temperature", "0", "--max-tokens", "64", *target, quiet=False).returncode


def free_ports(count: int) -> list[str]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def _running(arguments: Sequence[str]) -> Iterator[None]:
    """Run a module of ours until the block ends; its log goes to a file."""
    LOG_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (LOG_DIRECTORY / f"{arguments[0]}.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=40)


def _client(*arguments: str, quiet: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run our command line; its errors are always shown."""
    return subprocess.run([sys.executable, "-m", "clients", *arguments], check=False, stdout=subprocess.DEVNULL if quiet else None)


if __name__ == "__main__":
    sys.exit(main())
