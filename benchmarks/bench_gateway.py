"""What the HTTP gateway costs: CPU for each event that it streams, and time to the first token beside plain gRPC.

A control plane with a null worker answers. CPU times are those of the gateway's process, from /proc. The exit status is 1 when a goal is
missed.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.planes.processes import Planes, Setup
from benchmarks.planes.usage import cpu_seconds
from benchmarks.report import Report, row_against_limit
from benchmarks.report_options import add_output_options, write_rows
from clients.async_client import AsyncClient
from clients.request import Request
from clients.results import Delta
from pypto_serving.process.argument_types import count, number
from scripts.demo import free_ports
from scripts.prepare_demo_model import prepare_demo_model

_READY_SECONDS = 30.0
_CONTENT = b'"content":"'  # of an event with text, and of the first one
_PROBES = 100


def main() -> int:
    """Measure and report; returns the exit status."""
    options = _read_options()
    print(", ".join(describe_machine().values()))
    report = Report("gateway")
    setup = Setup(options.model or prepare_demo_model(), lanes=options.streams, step_ms=options.step_ms)
    with Planes(setup) as planes, _gateway(planes.target) as (pid, port):
        asyncio.run(_read_streams(port, options.streams, 16))
        before = cpu_seconds([pid])
        num_events = asyncio.run(_read_streams(port, options.streams, options.tokens))
        per_event = (cpu_seconds([pid]) - before) / num_events * 1e6
        report.add(row_against_limit(f"gateway, CPU per event, {options.streams} streams", per_event, 60, "us"))
        through, plain = asyncio.run(_first_tokens(planes.target, port))
        report.add(row_against_limit("time to first token through the gateway, beyond gRPC", (through - plain) * 1e3, 3, "ms"))
    write_rows(report, options)
    return 1 if report.num_missed else 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", type=count, default=64, metavar="N", help="streams at a time (default: %(default)s)")
    parser.add_argument("--tokens", type=count, default=500, metavar="N", help="tokens of each (default: %(default)s)")
    parser.add_argument("--step-ms", type=number, default=20.0, metavar="MS", help="time of a step of the worker (default: %(default)s)")
    add_output_options(parser)
    return parser.parse_args()


@contextmanager
def _gateway(target: str) -> Iterator[tuple[int, int]]:
    """The id of a gateway's process, and its port."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "clients.gateway", "--port", port, "--target", target, "--log-level", "warning"]
    process = subprocess.Popen(command)
    try:
        asyncio.run(_become_ready(int(port)))
        yield process.pid, int(port)
    finally:
        process.terminate()
        process.wait()


async def _become_ready(port: int) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            await _Stream(port, 1).read()
            return
        except OSError:
            assert time.monotonic() < deadline, "the gateway did not come up"
            await asyncio.sleep(0.05)


class _Stream:
    """A streamed chat, read as bytes, which costs little beside the gateway."""

    def __init__(self, port: int, max_tokens: int) -> None:
        self._port = port
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": max_tokens, "ignore_eos": True}
        sent = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent
        self.num_events = 0

    async def read(self) -> float:
        """Read to the end; returns the seconds to the first text."""
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request)
        first, num_content = 0.0, 0
        while received := await reader.read(1 << 16):
            self.num_events += received.count(b"data: ")
            num_content += received.count(_CONTENT)
            if num_content > 1 and not first:
                first = time.perf_counter() - began
        writer.close()
        assert self.num_events, "the gateway refused a request"
        return first


async def _read_streams(port: int, num_streams: int, max_tokens: int) -> int:
    streams = [_Stream(port, max_tokens) for _ in range(num_streams)]
    await asyncio.gather(*(stream.read() for stream in streams))
    return sum(stream.num_events for stream in streams)


async def _first_tokens(target: str, port: int) -> Sequence[float]:
    """Median seconds to the first token, through the gateway and by gRPC, in turn; each call ends before the next one begins."""
    through, plain = [], []
    async with AsyncClient(target) as client:
        for _ in range(_PROBES):
            through.append(await _Stream(port, 1).read())
            began = time.perf_counter()
            async for event in client.send(Request(messages=[{"role": "user", "content": "x"}], max_tokens=1, ignore_eos=True)):
                if isinstance(event, Delta):
                    plain.append(time.perf_counter() - began)
    return statistics.median(through), statistics.median(plain)


if __name__ == "__main__":
    sys.exit(main())
