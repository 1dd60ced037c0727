"""python -m worker as a process."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes.control_plane.hand_control_plane import HandControlPlane, wire_admission
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.checkpoints import TinyCheckpoint

from pypto_serving.wire.columns import pack_ids, unpack_ids
from pypto_serving.wire.fingerprint import fingerprint_model

ROOT = Path(__file__).parents[3]
FLAGS = ("--device", "cpu", "--threads", "1", "--port", "0", "--metrics-port", "0", "--num-pages", "8", "--max-lanes", "4")


def command(model: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "worker", "--model", str(model), *FLAGS, "--log-format", "json", *flags]


@contextmanager
def worker(model: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A worker that serves, and the fields of the line that says so."""
    process = subprocess.Popen(command(model, *flags), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        while '"warning"' in line or '"weights hashed"' in line:  # no C++ kernels; a thread that was faster
            line = process.stderr.readline()
        assert '"serving"' in line, line + process.stderr.read()
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def refused(model: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(model, *flags), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


async def test_worker_serves_steps_and_stops_with_exit_code_0(tiny_checkpoint: TinyCheckpoint) -> None:
    model = tiny_checkpoint("llama")
    with worker(model) as (process, facts):
        assert facts["pages"] == 8 and facts["numerics_id"].startswith("bfloat16/")
        with urllib.request.urlopen(f"http://{facts['metrics']}/metrics") as response:
            text = response.read().decode()
        assert "pypto_serving_worker_build_info{" in text and re.search(r"^pypto_serving_worker_model_load_seconds [0-9.]+$", text, re.M)
        async with grpc.aio.insecure_channel(facts["address"]) as channel:
            plane = HandControlPlane(channel)
            welcome = await plane.open(model_fingerprint=fingerprint_model(model))
            assert welcome.numerics_id == facts["numerics_id"] and welcome.cache_groups[0].num_pages == 8
            await plane.step(1, admissions=[wire_admission(0, [5, 6, 7], pages=[0])], chunk_lanes=pack_ids([0]), chunk_tokens=pack_ids([3]))
            await plane.step(2)
            results = [await plane.result(), await plane.result()]
            assert [result.error for result in results] == ["", ""]
            assert all(len(unpack_ids(result.token_ids, "")) == 1 for result in results)
            await plane.step(3, acked_step_id=2, released_lanes=pack_ids([0]))
            await plane.result()
            process.send_signal(signal.SIGTERM)
            assert await plane.end() == (grpc.StatusCode.UNAVAILABLE, "the worker was told to stop")
        assert process.wait(30) == 0


@pytest.mark.slow
async def test_live_lanes_are_waited_for_until_the_second_signal(tiny_checkpoint: TinyCheckpoint) -> None:
    model = tiny_checkpoint("llama")
    with worker(model) as (process, facts):
        async with grpc.aio.insecure_channel(facts["address"]) as channel:
            plane = HandControlPlane(channel)
            await plane.open(model_fingerprint=fingerprint_model(model))
            await plane.step(1, admissions=[wire_admission(0, [5], pages=[0])])
            await plane.result()
            process.send_signal(signal.SIGTERM)
            while not (await plane.read("progress")).progress.draining:
                pass
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            process.send_signal(signal.SIGTERM)
            assert (await plane.end())[0] is grpc.StatusCode.UNAVAILABLE
        assert process.wait(30) == 0


@pytest.mark.slow
async def test_wrk_06_orphan_ends_by_itself_if_told_so(tiny_checkpoint: TinyCheckpoint) -> None:
    model = tiny_checkpoint("llama")
    with worker(model, "--lease-seconds", "0.3", "--exit-when-orphaned") as (process, facts):
        async with grpc.aio.insecure_channel(facts["address"]) as channel:
            plane = HandControlPlane(channel)
            await plane.open(model_fingerprint=fingerprint_model(model))
            assert process.poll() is None
            assert (await plane.end())[0] in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
        assert process.wait(30) == 0


@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
def test_a_taken_port_ends_with_one_line(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        result = refused(tmp_path, flag, port)
    assert (result.returncode, result.stderr) == (1, f"worker: cannot listen on 127.0.0.1:{port}: Address already in use\n")


def test_missing_directory_ends_with_one_line() -> None:
    result = refused(Path("/no/such/model"))
    assert (result.returncode, result.stderr) == (2, "worker: --model /no/such/model: no such directory\n")


@pytest.mark.slow
def test_cache_that_does_not_fit_ends_with_one_line(tiny_checkpoint: TinyCheckpoint) -> None:
    result = refused(tiny_checkpoint("llama"), "--num-pages", "2000000000")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "--num-pages 2000000000 takes" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["PYPTO_LINEARS", "PYPTO_CPU_LEVEL"])
def test_a_setting_of_the_kernels_that_does_not_exist_ends_with_one_line(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(setting, "fastest")
    result = refused(tiny_checkpoint("llama"))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"worker: {setting}=fastest: ")


def test_help_does_not_import_torch() -> None:
    script = "import runpy, sys\ntry:\n    runpy.run_module('worker', run_name='__main__')\nfinally:\n    assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--max-lanes" in result.stdout
