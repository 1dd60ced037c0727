import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from harness.checkpoints import TinyCheckpoint
from harness.processes import fixed_ports

from pypto_serving.process import logs
from pypto_serving.process.start_up import OUR_PACKAGES


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)


def test_an_event_is_one_json_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info")
    logging.getLogger("a.b").info("worker joined", extra={"address": "127.0.0.1:1"})
    logging.getLogger().handlers[0].flush()
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["logger"], entry["message"], entry["address"]) == ("info", "a.b", "worker joined", "127.0.0.1:1")


def test_on_a_terminal_a_line_that_changes_stays_below_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream, os.fdopen(shown, "rb", buffering=0) as screen:
        os.set_blocking(shown, False)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("NO_COLOR", "1")
        logs.configure("text", "info")
        assert logs.show_below("one of 2")
        logging.getLogger("a").info("event")
        assert logs.show_below("two of 2") and logs.show_below("")
        logging.getLogger().handlers[0].flush()
        _, *rest = screen.read().decode().replace("\r\n", "\n").split("\r\x1b[K")
    assert rest[0].endswith("INFO    a: event\none of 2") and rest[1:] == ["two of 2", ""]


def test_elsewhere_there_is_no_such_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("auto", "info")
    assert not logs.show_below("one of 2")
    logging.getLogger().handlers[0].flush()
    assert capsys.readouterr().err == ""


def test_fields_of_a_process_stand_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info", part="scheduler")
    logging.getLogger("a.b").info("worker joined")
    logging.getLogger().handlers[0].flush()
    assert json.loads(capsys.readouterr().err)["part"] == "scheduler"


def test_a_traceback_stays_on_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger().exception("failed")
    logging.getLogger().handlers[0].flush()
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: no" in json.loads(line)["traceback"]


def test_text_appends_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "info")
    logging.getLogger("a").info("joined", extra={"epoch": 3})
    logging.getLogger("a").debug("hidden")
    logging.getLogger().handlers[0].flush()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO    a: joined epoch=3")


def _line_of(capsys: pytest.CaptureFixture[str]) -> str:
    logging.getLogger().handlers[0].flush()
    (line,) = capsys.readouterr().err.splitlines()
    return str(line)


def test_debug_shows_our_lines_and_none_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "debug")
    logging.getLogger("grpc._cython.cygrpc").debug("[_cygrpc] Loaded running loop")
    logging.getLogger("asyncio").debug("Using selector: EpollSelector")
    logging.getLogger("worker.service").debug("step executed")
    assert _line_of(capsys).endswith("DEBUG   worker.service: step executed")


def test_a_status_that_grpc_cannot_send_as_the_call_has_ended_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "debug")
    of_grpc = logging.getLogger("grpc._cython.cygrpc")
    for error in (cygrpc.ExecuteBatchError("Failed", [], []), ValueError("of a handler")):
        of_grpc.error("raised by servicer method [/a/B]", exc_info=error)
    of_grpc.error("without an exception")
    logging.getLogger().handlers[0].flush()
    shown = capsys.readouterr().err
    assert "ExecuteBatchError" not in shown and "ValueError: of a handler" in shown and "without an exception" in shown


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {}, "\x1b[33mWARNING\x1b[0m a: lost\x1b[2m worker=w:1\x1b[0m"),
        (True, {"NO_COLOR": "1"}, "WARNING a: lost worker=w:1"),
        (True, {"TERM": "dumb"}, "WARNING a: lost worker=w:1"),
        (False, {}, "WARNING a: lost worker=w:1"),
    ],
)
def test_only_a_terminal_gets_colours(
    is_terminal: bool, environment: dict[str, str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    logs.configure("text", "info")
    logging.getLogger("a").warning("lost", extra={"worker": "w:1"})
    assert _line_of(capsys).partition(" ")[2] == expected


def test_people_read_a_short_numerics_id_and_programs_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    numerics_id = "bfloat16/torch-2.13.0+cpu/cpu-avx2"
    logs.configure("text", "info")
    logging.getLogger("a").info("serving", extra={"numerics_id": numerics_id})
    assert _line_of(capsys).endswith(f"numerics_id={hashlib.sha256(numerics_id.encode()).hexdigest()[:8]}")
    logs.configure("json", "info")
    logging.getLogger("a").info("serving", extra={"numerics_id": numerics_id})
    assert json.loads(_line_of(capsys))["numerics_id"] == numerics_id


def test_hst_01_a_pipe_that_nobody_reads_stops_nobody_and_what_is_dropped_is_counted_once() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"f")
    os.set_blocking(writer, True)
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as lines:
        handler = logs.LineWriter(stream, max_lines=100)
        handler.setFormatter(logging.Formatter("%(message)s %(levelname)s"))
        for index in range(2000):
            handler.emit(logging.makeLogRecord({"msg": f"{index} " + "x" * 1000}))
        handler.emit(logging.makeLogRecord({"msg": "last"}))
        read = [lines.readline().lstrip("f")]
        while "dropped" not in read[-1]:
            read.append(lines.readline())
        handler.emit(logging.makeLogRecord({"msg": "end"}))
        while "end" not in read[-1]:
            read.append(lines.readline())
    assert [line.split()[0] for line in read[:20]] == [str(index) for index in range(20)]
    assert sum("dropped" in line for line in read) == 1 and len(read) < 1000


def test_hst_01_process_whose_log_nobody_reads_works_on_and_ends() -> None:
    code = """if True:
        import logging, sys
        from pypto_serving.process import logs
        logs.configure("json", "info")
        for index in range(20_000):
            logging.getLogger("a").warning("line %d " + "x" * 100, index)
        print("done", flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("closing", ["2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("module", ["worker", "control_plane"])
def test_hst_03_a_process_whose_standard_streams_are_closed_serves(tiny_checkpoint: TinyCheckpoint, module: str, closing: str) -> None:
    (port,) = fixed_ports(1)
    flags = ["--model", str(tiny_checkpoint("llama")), "--port", "0", "--metrics-port", str(port)]
    flags += ["--device", "cpu", "--num-pages", "16"] if module == "worker" else ["--announce-port", "0"]
    process = subprocess.Popen(["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-m", module, *flags])
    try:
        while process.poll() is None and not _listens(port):
            time.sleep(0.05)
        assert process.poll() is None
        descriptors = Path(f"/proc/{process.pid}/fd")
        assert os.readlink(descriptors / "2") == os.devnull
    finally:
        process.terminate()
        assert process.wait(30) == 0


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
