"""The wall clock jumps: nothing that counts seconds notices."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2
from harness.running_control_plane import RunningControlPlane, running
from prometheus_client.parser import text_string_to_metric_families

from pypto_serving.inference.v1 import inference_pb2 as pb


def generate(server: RunningControlPlane, seconds: float | None = None) -> Awaitable[pb.GenerateResponse]:
    spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=20))
    return asyncio.ensure_future(server.stub.Generate(pb.GenerateRequest(spec=spec), timeout=seconds))


def sums_of_seconds(server: RunningControlPlane) -> list[float]:
    with urlopen(f"http://127.0.0.1:{server.plane.ports['metrics']}/metrics") as answer:
        families = text_string_to_metric_families(str(answer.read(), "utf-8"))
    samples = [sample for family in families if family.type == "histogram" for sample in family.samples]
    return [sample.value for sample in samples if sample.name.endswith("_seconds_sum")]


@pytest.mark.parametrize("jump_seconds", [3600.0, -3600.0])
async def test_ops_07_a_jump_of_the_wall_clock_is_not_noticed(
    model: Path, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    jumped, now = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + jumped[0])
    worker.options = replace(worker.options, step_seconds=0.02)
    async with running(model, "--worker", worker.address, "--max-num-seqs", "1") as server:
        await server.health_becomes(health_pb2.HealthCheckResponse.SERVING)
        running_one, queued_one = generate(server, 60), generate(server, 60)
        while len(worker.steps) < 5:
            await asyncio.sleep(0.005)
        jumped[0] = jump_seconds
        # The last one without a deadline, which gRPC's client would take from the wall clock.
        for answer in (await running_one, await queued_one, await generate(server)):
            timing = answer.choices[0].finished.timing
            assert answer.choices[0].text == "abcdefghijklmnopqrst"
            assert all(0.0 <= seconds < 60.0 for seconds in (timing.queue_seconds, timing.first_token_seconds, timing.total_seconds))
        assert worker.num_streams == 1
        sums = sums_of_seconds(server)
        assert len(sums) > 5 and all(0.0 <= seconds < 60.0 for seconds in sums)
