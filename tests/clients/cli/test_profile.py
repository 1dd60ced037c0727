"""`profile`, against a whole service."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.text.model_directory import write_model_directory
from harness.service import Service, scripted_service
from harness.trace_rules import CheckedTrace


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with scripted_service(write_model_directory(tmp_path / "model")) as service:
        yield service


def admin(service: Service) -> tuple[str, str]:
    return "--target", f"127.0.0.1:{service.server.plane.ports['admin']}"


async def test_run_writes_a_trace(command_line, service, tmp_path):
    ended = await command_line("profile", "run", "--seconds", "0.2", "-o", str(tmp_path / "trace.json.gz"), *admin(service))
    assert (ended.status, "open it at https://ui.perfetto.dev" in ended.out) == (0, True)
    assert "it does not know recordings: it is older" in ended.err
    assert "control plane" in CheckedTrace.read(tmp_path / "trace.json.gz").processes.values()


async def test_start_and_stop_do_the_same(command_line, service, tmp_path):
    started = await command_line("profile", "start", "--level", "requests", *admin(service))
    assert started.status == 0 and "for 60 s at most" in started.out
    await service.unary("x:", max_tokens=2, request_id="mine")
    stopped = await command_line("profile", "stop", "--output", str(tmp_path / "trace.json"), *admin(service))
    assert stopped.status == 0
    [request] = CheckedTrace.read(tmp_path / "trace.json").named("control plane", "request")
    assert request["args"]["request_id"] == "mine"


async def test_what_cannot_be_is_said_in_one_line(command_line, service, tmp_path):
    nothing = await command_line("profile", "stop", "-o", str(tmp_path / "t.json"), *admin(service))
    assert (nothing.status, nothing.err) == (1, "error: FAILED_PRECONDITION: there is no recording to be fetched: start one\n")
    nowhere = await command_line("profile", "run", "-o", str(tmp_path / "missing" / "t.json"), *admin(service))
    assert nowhere.status == 2 and "is no folder" in nowhere.err
    elsewhere = await command_line("profile", "start", "--target", f"127.0.0.1:{service.server.plane.ports['address']}")
    assert elsewhere.status == 1 and elsewhere.err.startswith("error: UNIMPLEMENTED: ")


async def test_an_output_that_cannot_be_written_ends_it_before_it_begins(command_line, service, tmp_path):
    for action in ("run", "stop"):
        full = await command_line("profile", action, "-o", "/dev/full", *admin(service))
        assert (full.status, full.out, full.err) == (2, "", "error: --output: /dev/full: No space left on device\n")
    kept = tmp_path / "t.json"
    kept.write_text("what stands there")
    nothing = await command_line("profile", "stop", "-o", str(kept), *admin(service))
    assert (nothing.status, kept.read_text()) == (1, "what stands there")
    new = await command_line("profile", "stop", "-o", str(tmp_path / "new.json"), *admin(service))
    assert new.status == 1 and not (tmp_path / "new.json").exists()


async def test_a_trace_that_cannot_be_written_names_the_file(command_line, service, tmp_path, monkeypatch):
    def fail(trace, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("clients.chrome_trace.ChromeTrace.write", fail)
    output = tmp_path / "trace.json"
    ended = await command_line("profile", "run", "--seconds", "0.2", "-o", str(output), *admin(service))
    assert ended.status == 1 and ended.err.endswith(f"error: --output: {output}: No space left on device\n")
