"""The command starts real processes; the workers compute nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from harness.checkpoints import make_checkpoint
from harness.processes import fixed_ports

from clients import Client

pytestmark = pytest.mark.slow


class Running:
    """`serve` on ports of its own, with what it says."""

    def __init__(self, *flags):
        self.lines, self.out = [], []
        command = [sys.executable, "-m", "clients", "serve", "--log-format", "json", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._threads = [
            threading.Thread(target=lambda: self.lines.extend(self.process.stderr)),
            threading.Thread(target=lambda: self.out.extend(self.process.stdout)),
        ]
        for thread in self._threads:
            thread.start()

    def until(self, condition, seconds=100):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.05)

    def entries(self, **fields):
        found = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [entry for entry in found if fields.items() <= entry.items()]

    def target(self):
        self.until(lambda: self.out or self.process.poll() is not None)
        assert self.out, self.lines
        return re.search(r"gRPC on (\S+?),", self.out[0])[1]

    def children(self):
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split() if self.process.poll() is None else []

    def child_with(self, word):
        return next(int(pid) for pid in self.children() if word in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))

    def wait(self, seconds=60):
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join()
        return code

    def end(self):
        self.process.kill()
        self.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def serve(tmp_path):
    """Starts it, with workers that compute nothing."""
    started = []

    def run(*flags, model=None, gateway=False):
        admin, metrics, http = map(str, fixed_ports(3))
        model = model or make_checkpoint(tmp_path / "model", "llama")
        ports = ("--port", "0", "--admin-port", admin, "--metrics-port", metrics, "--http-port", http)
        shape = ("--device", "null", "--control-args=--frontends 0", *(() if gateway else ("--no-gateway",)))
        started.append(Running("--model", str(model), *shape, *ports, *flags))
        started[-1].admin, started[-1].http = f"127.0.0.1:{admin}", f"http://127.0.0.1:{http}"
        return started[-1]

    yield run
    for running in started:
        running.end()


def drain(target):
    return subprocess.run([sys.executable, "-m", "clients", "drain", "--target", target], check=False).returncode


def test_it_serves_and_ends_with_one_interrupt(serve):
    running = serve("--workers", "2")
    with Client(running.target()) as client:
        assert len(client.generate("a", max_tokens=5, ignore_eos=True).token_ids) == 5
    assert {entry.get("program") for entry in running.entries(message="serving")} == {"control", "worker-0", "worker-1"}
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 0
    assert len(running.entries(message="stopped")) == 3 and running.children() == []


def test_a_worker_that_dies_is_started_again(serve):
    running = serve("--workers", "2")
    with Client(running.target()) as client:
        os.kill(running.child_with("worker"), signal.SIGKILL)
        running.until(lambda: len(running.entries(logger="worker.service.servicer", message="session opened")) == 3)
        assert client.generate("a", max_tokens=2, ignore_eos=True).token_ids
    assert [entry["exit_code"] for entry in running.entries(level="error", logger="clients.serve.service")] == [-9]


def test_a_drain_ends_it_in_good_order(serve):
    running = serve()
    running.target()
    assert drain(running.admin) == 0
    assert running.wait() == 0 and running.children() == []
    assert not running.entries(level="error") and not running.entries(level="warning", logger="clients.serve.service")
    [end] = running.entries(logger="clients.serve.service", program="control")
    assert end["message"] == "a process has ended in good order, and so do all"


def test_the_page_shows_the_service(serve):
    running = serve(gateway=True)
    running.target()
    running.until(lambda: running.entries(program="gateway", message="serving"))
    with urllib.request.urlopen(f"{running.http}/state") as answer:
        state = json.load(answer)
    assert state["missing_flags"] == [] and state["failures"] == {}
    assert state["activity"] and [plane["target"] for plane in state["control_planes"]] == [running.admin]


def test_its_processes_end_when_it_is_killed(serve):
    running = serve()
    running.target()
    children = running.children()
    assert len(children) == 2
    running.process.kill()
    running.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children))


def test_a_second_interrupt_ends_it_at_once(serve):
    running = serve("--worker-args=--step-ms 500")
    with Client(running.target(), resume_seconds=0) as client:
        stream = client.stream("a", max_tokens=60, ignore_eos=True)
        next(stream), next(stream)
        running.process.send_signal(signal.SIGINT)
        running.until(lambda: running.entries(program="control", message="draining"))
        running.process.send_signal(signal.SIGINT)
        assert running.wait(25) == 0


def test_what_cannot_start_ends_everything_and_the_last_line_says_why(serve, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    running = serve(model=tmp_path)
    assert running.wait() == 2
    assert all(line.startswith("{") for line in running.lines)
    last = json.loads(running.lines[-1])
    assert (last["level"], last["exit_code"]) == ("error", 2) and running.out == []
    assert re.match(r"(control|worker-0) cannot start: [ a-z]+: /", last["message"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "/none"), "error: --model: /none is no directory\n"),
        (("--model", "/", "--worker-args", "'"), "--worker-args: ': No closing quotation\n"),
        (("--model", "/", "--workers", "0"), "--workers: 0 is not an integer from 1 to 64\n"),
    ],
)
async def test_flags_that_make_no_sense_are_bad_usage(command_line, flags, message):
    ended = await command_line("serve", *flags)
    assert ended.status == 2 and ended.err.endswith(message)
