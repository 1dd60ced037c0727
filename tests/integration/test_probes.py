"""Probes over HTTP at real processes of every kind."""

import os
import signal
import time
from pathlib import Path

import pytest
from harness.probing import status_and_line
from harness.processes import ServingProcess, control_plane, fixed_ports, front_end, scheduler

pytestmark = pytest.mark.slow

OK = (200, "ok")


def probe(process: ServingProcess, name: str) -> tuple[int, str]:
    return status_and_line(process.metrics_url.replace("/metrics", f"/{name}"))


def becomes(process: ServingProcess, name: str, answer: tuple[int, str]) -> None:
    while probe(process, name) != answer:
        time.sleep(0.05)


def test_a_worker_is_ready_before_anybody_owns_it(device: ServingProcess) -> None:
    assert [probe(device, name) for name in ("startupz", "livez", "readyz")] == [OK, OK, OK]


def test_under_a_supervisor_the_scheduler_answers_for_its_front_ends(model: Path, device: ServingProcess) -> None:
    with control_plane(model, [device], "--frontends", "2", "--takeover") as control:
        becomes(control, "readyz", OK)
        parts = control.parts
        front_ends = [pid for part, pid in parts.items() if part != "scheduler"]
        for pid in front_ends:
            os.kill(pid, signal.SIGSTOP)
        becomes(control, "readyz", (503, "no front end takes calls"))
        assert probe(control, "livez") == OK
        for pid in front_ends:
            os.kill(pid, signal.SIGCONT)
        becomes(control, "readyz", OK)


def test_a_front_end_waits_for_a_scheduler_and_that_for_its_lease(model: Path, device: ServingProcess, tmp_path: Path) -> None:
    (port,) = fixed_ports(1)
    lease = ("--lease-file", str(tmp_path / "lease"), "--lease-seconds", "2")
    with front_end(model, [f"127.0.0.1:{port}"]) as front:
        found = [probe(front, name) for name in ("startupz", "livez", "readyz")]
        assert found[:2] == [OK, OK] and found[2][0] == 503
        while (answer := probe(front, "readyz")) == (503, "no scheduler is in session: not dialled yet"):
            time.sleep(0.05)
        assert answer[0] == 503 and answer[1].startswith(f"no scheduler is in session: 127.0.0.1:{port}: UNAVAILABLE: ")
        with scheduler(model, [device], "--frontend-port", str(port), *lease) as first:
            becomes(first, "readyz", OK)
            becomes(front, "readyz", OK)
            with scheduler(model, [device], *lease) as second:
                while not (waiting := [event for event in second.events if event["message"] == "standing by"]):
                    time.sleep(0.05)
                answers = [status_and_line(f"http://{waiting[0]['metrics']}/{name}") for name in ("startupz", "livez", "readyz")]
                assert answers[:2] == [OK, OK] and answers[2][0] == 503
                assert answers[2][1].startswith("this scheduler stands by: ") and answers[2][1].endswith(" holds the lease")
