"""The control plane as a process."""

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes.text.model_directory import write_model_directory
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.waiting import until_first_token

from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc

HEAVY = ("torch", "transformers", "worker", "kernels", "clients")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    ports = ["--port", "0", "--metrics-port", "0", "--announce-port", "0"]
    return subprocess.run([sys.executable, "-m", "control_plane", *ports, *flags], capture_output=True, text=True, timeout=30)


def test_no_heavy_module_is_imported() -> None:
    processes = ", ".join(f"control_plane.edge.server.{name}" for name in ("one_process", "front_end_process", "scheduler_process"))
    code = f"import control_plane.__main__, {processes}, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("flags", [["--model", "/nowhere"], ["--model"], []])
def test_a_wrong_configuration_is_one_line_and_exit_code_2(flags: list[str]) -> None:
    result = run(*flags)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr and "--model" in result.stderr.splitlines()[-1]


def test_a_busy_thread_lets_an_event_loop_in_within_half_a_millisecond() -> None:
    code = "import atexit, control_plane.__main__ as m, sys; atexit.register(lambda: print(sys.getswitchinterval())); m.main(['--help'])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "0.0005"


def test_sigterm_ends_an_idle_process_with_exit_code_0(tmp_path: Path) -> None:
    model = write_model_directory(tmp_path / "model")
    flags = ["--model", str(model), "--port", "0", "--metrics-port", "0", "--announce-port", "0"]
    process = subprocess.Popen([sys.executable, "-m", "control_plane", *flags], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert '"message": "serving"' in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in log) == (0, False)


async def start(model: Path, worker: FakeWorker, *flags: str) -> tuple[asyncio.subprocess.Process, str]:
    """A control plane with a worker, and its address."""
    ports = ["--port", "0", "--metrics-port", "0", "--announce-port", "0", "--log-format", "json"]
    arguments = ["-m", "control_plane", "--model", str(model), "--worker", worker.address, *ports, *flags]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.PIPE)
    while (event := json.loads(await process.stderr.readline()))["message"] != "serving":
        pass
    return process, event["address"]


async def test_ops_03_sigterm_under_load(model: Path, worker: FakeWorker) -> None:
    worker.options = replace(worker.options, step_seconds=0.02)
    process, address = await start(model, worker, "--max-num-seqs", "3")
    async with grpc.aio.insecure_channel(address) as channel:
        stub, health = inference_pb2_grpc.InferenceServiceStub(channel), health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=60))
        running = [stub.GenerateStream(pb.GenerateStreamRequest(spec=spec)) for _ in range(3)]
        for stream in running:
            await until_first_token(stream)
        queued = [stub.GenerateStream(pb.GenerateStreamRequest(spec=spec)) for _ in range(2)]
        for stream in queued:
            await stream.read()
        process.send_signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        for call in (*(stream.read() for stream in queued), stub.Generate(pb.GenerateRequest(spec=spec))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        for stream in running:
            finished = None
            while (event := await stream.read()) is not grpc.aio.EOF:
                finished = event.finished
            assert finished.usage.completion_tokens == 60
    log = await process.stderr.read()
    assert (await process.wait(), b"Traceback" in log) == (0, False)


async def test_a_second_signal_ends_the_process_at_once(model: Path, worker: FakeWorker) -> None:
    worker.options = replace(worker.options, step_seconds=0.02)
    process, address = await start(model, worker, "--drain-seconds", "600")
    async with grpc.aio.insecure_channel(address) as channel:
        spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]))
        stream = inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(pb.GenerateStreamRequest(spec=spec))
        await until_first_token(stream)
        worker.options = replace(worker.options, step_seconds=1.0)  # not so long that the worker hangs, which would end the drain
        process.send_signal(signal.SIGTERM)
        while json.loads(await process.stderr.readline())["message"] != "draining":
            pass
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0
            with pytest.raises(grpc.aio.AioRpcError):
                while await stream.read() is not grpc.aio.EOF:
                    pass
