import io
import json

import pytest
from fakes.text.model_directory import write_model_directory
from harness.service import scripted_service
from rich.console import Console

from clients.cli.service_view import lines, tables
from clients.service_state.state import Activity, ControlPlaneState, Count, Pages, Percentiles, Rates, ServiceState, WorkerState
from pypto_serving.log.v1 import log_pb2
from pypto_serving.process.log_level import LogLevel


@pytest.fixture
async def service(tmp_path):
    async with scripted_service(write_model_directory(tmp_path / "model")) as running:
        yield running


def address(service, port):
    return f"127.0.0.1:{service.server.plane.ports[port]}"


async def test_state_shows_the_control_plane_and_its_workers(command_line, service):
    metrics = f"http://{address(service, 'metrics')}"
    ended = await command_line("state", "--target", address(service, "admin"), "--metrics-url", metrics)
    assert (ended.status, ended.err) == (0, "")
    assert f"control plane {address(service, 'admin')}: 0 running, 0 waiting" in ended.out
    assert f"worker {service.worker.address}: 0 running" in ended.out and "tokens/s" in ended.out


async def test_state_is_json_on_request(command_line, service):
    ended = await command_line("state", "--json", "--target", address(service, "admin"))
    state = json.loads(ended.out)
    assert state["control_planes"][0]["workers"][0]["phase"] == "in_session" and state["activity"] is None


async def test_state_of_nobody_says_so_once_and_shows_what_else_there_is(command_line, service, dead_target):
    ended = await command_line("state", "--target", dead_target)
    assert (ended.status, ended.out.strip()) == (3, "")
    assert ended.err == f"error: no answer from {dead_target}: --admin-port of a control plane gives it an address for operators\n"
    metrics = f"http://{address(service, 'metrics')}"
    ended = await command_line("state", "--target", dead_target, "--metrics-url", metrics)
    assert ended.status == 3 and "tokens/s" in ended.out and dead_target not in ended.out and ended.err.count("\n") == 1


async def test_state_says_which_of_several_does_not_answer(command_line, service, dead_target):
    ended = await command_line("state", "--target", address(service, "admin"), "--target", dead_target)
    assert (ended.status, ended.err) == (0, "")
    assert f"{dead_target} cannot be read: no answer from {dead_target}: --admin-port" in ended.out


@pytest.mark.parametrize(
    "command",
    [("state",), ("drain",), ("reset-cache",), ("log-level", "info"), ("profile", "start"), ("profile", "run", "--seconds", "1")],
)
async def test_every_command_for_operators_says_what_is_wrong_with_its_address(command_line, server, service, dead_target, command):
    async def said(target, status):
        ended = await command_line(*command, "--target", target)
        assert ended.status == status and ended.err.count("\n") == 1 and target in ended.err, ended
        return ended.err

    assert "no answer from" in await said(dead_target, 3)
    assert "is no address for operators: --admin-port" in await said(server.target, 1)
    assert "it speaks HTTP/1, and no gRPC" in await said(address(service, "metrics"), 3)


@pytest.fixture
async def locked(tmp_path):
    (tmp_path / "key").write_text("sesame\n")
    flags = ("--admin-key-file", str(tmp_path / "key"))
    async with scripted_service(write_model_directory(tmp_path / "locked"), *flags) as running:
        yield running


@pytest.mark.parametrize("command", [("state",), ("drain",), ("profile", "start")])
async def test_without_the_key_that_is_needed_it_says_where_to_give_it(command_line, locked, command):
    ended = await command_line(*command, "--target", address(locked, "admin"))
    assert ended.status == 1 and ended.err.count("\n") == 1
    assert "UNAUTHENTICATED" in ended.err and "--api-key-file or PYPTO_SERVING_API_KEY" in ended.err
    ended = await command_line("state", "--target", address(locked, "admin"), environment={"PYPTO_SERVING_API_KEY": "sesame"})
    assert ended.status == 0


async def test_the_cache_is_reset_and_a_drain_begins(command_line, service):
    await service.scripted(b"a" * 200, max_tokens=3)
    ended = await command_line("reset-cache", "--target", address(service, "admin"))
    assert ended.status == 0 and int(ended.out.removeprefix("pages that are free now: ")) > 0
    ended = await command_line("drain", "--target", address(service, "admin"))
    assert (ended.status, ended.out) == (0, "draining; calls that have not ended: 0\n")


@pytest.fixture
def changes(monkeypatch):
    """What the control plane is told of its log."""
    heard = []
    monkeypatch.setattr(LogLevel, "change", lambda _, change: heard.append(change))
    return heard


@pytest.mark.parametrize(
    ("words", "answer", "change"),
    [
        (("debug", "--seconds", "2.5"), "debug for 2.5 s", log_pb2.LevelChange(level=log_pb2.LEVEL_DEBUG, milliseconds=2500)),
        (("error",), "error", log_pb2.LevelChange(level=log_pb2.LEVEL_ERROR)),
        (("default",), "default", log_pb2.LevelChange()),
    ],
)
async def test_a_log_level_is_told_to_all_who_know_what_that_is(command_line, service, changes, words, answer, change):
    ended = await command_line("log-level", *words, "--target", address(service, "admin"))
    assert (ended.status, ended.out, changes) == (0, f"{answer}: control plane\n", [change])
    assert ended.err == f"note: worker {service.worker.address} does not know this: it is older\n"


async def test_a_log_level_is_told_to_those_of_a_name(command_line, service, changes):
    ended = await command_line("log-level", "info", "--process", "control plane", "--target", address(service, "admin"))
    assert (ended.status, ended.out, ended.err, len(changes)) == (0, "info: control plane\n", "", 1)
    ended = await command_line("log-level", "info", "--process", "nobody", "--target", address(service, "admin"))
    assert (ended.status, ended.out, len(changes)) == (1, "", 1)
    assert f"process = 'nobody' is none of control plane, worker {service.worker.address}," in ended.err


async def test_a_log_level_that_nobody_is_told_is_a_failure(command_line, service, changes):
    ended = await command_line("log-level", "info", "--process", "worker", "--target", address(service, "admin"))
    assert (ended.status, ended.out, changes) == (1, "info: nobody\n", [])
    assert ended.err.startswith("note: worker ")


async def test_the_clients_port_is_not_the_operators(command_line, server):
    ended = await command_line("drain", "--target", server.target)
    assert ended.status == 1 and "is no address for operators: --admin-port" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("top",), "standard output is no terminal"),
        (("state", "--metrics-url", "nonsense"), "'nonsense' is not http://HOST:PORT/metrics"),
        (("top", "--interval", "0"), "0 is not a number from 0.1 to 60"),
        (("log-level", "debug", "--seconds", "0"), "0 is not a number from 0.001 to 86400"),
    ],
)
async def test_bad_usage_is_said(command_line, arguments, message):
    ended = await command_line(*arguments)
    assert ended.status == 2 and message in ended.err


async def test_nobody_at_the_address_is_one_line(command_line, dead_target):
    ended = await command_line("drain", "--target", dead_target)
    assert ended.status == 3 and ended.err.count("\n") == 1 and dead_target in ended.err


def busy_state():
    worker = WorkerState("10.0.0.1:50061", "in_session", "", 7, 2, Pages(free=50, fenced=1, cached=25, referenced=24))
    lost = WorkerState("10.0.0.2:50061", "resuming", "connection [bold]refused")
    plane = ControlPlaneState("10.0.0.3:50055", True, 3, 1, 2, 12, (worker, lost))
    times = Percentiles(10, 0.05, 0.2, 12.0)
    counts = (Count("worker_losses", 5, 1, 3.0), Count("preemptions", 9, 0, None))
    activity = Activity(False, {}, 0, Rates(1.0, 2.0, 100.0, 50.0, 9.5), times, None, times, 0.25, (), (), counts)
    return ServiceState(0.0, (plane,), activity, {"http://x/metrics": "refused"})


def test_lines_tell_all_that_matters():
    shown = "\n".join(lines(busy_state()))
    for part in (
        "7 running, 3 waiting, 1 held, 12 calls, 2 wait for the first worker, draining",
        "24 pages used, 25 cached, 50 free, 1 fenced",
        "worker 10.0.0.2:50061: resuming: connection [bold]refused",
        "engine         NOT healthy",
        "first token    50 ms median, 200 ms p90, 12.0 s p99",
        "between tokens -",
        "prefix hits    25% of prompt tokens",
        "incidents      worker_losses 1 (5 in all) in the last minute",
        "http://x/metrics cannot be read: refused",
    ):
        assert part in shown


def test_tables_show_the_same_and_take_no_markup_from_a_service():
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(tables(busy_state()))
    shown = console.export_text()
    assert "connection [bold]refused" in shown and "██████▒▒▒▒▒▒············" in shown and "50.0 generated" in shown


def test_a_service_with_nothing_is_shown_as_such():
    state = ServiceState(0.0, (ControlPlaneState("a:1", False, 0, 0, 0, 0, ()),))
    assert lines(state) == ["control plane a:1: 0 running, 0 waiting, 0 held, 0 calls", "  no worker"]
