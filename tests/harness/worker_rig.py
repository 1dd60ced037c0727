"""A worker's servicer over a fake runner, and a channel to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
from fakes.control_plane.hand_control_plane import FINGERPRINT, HandControlPlane
from fakes.device.runner import FakeRunner

from pypto_serving.worker.v1 import worker_pb2_grpc
from worker.progress import ProgressCounter
from worker.service.channel_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from worker.service.device_thread import DeviceThread
from worker.service.metrics import WorkerMetrics
from worker.service.servicer import WorkerServicer
from worker.step import CacheGroup, WorkerDescription


class HandClock:
    """Time that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rig:
    """A served worker without a model."""

    runner: FakeRunner
    servicer: WorkerServicer
    metrics: WorkerMetrics
    clock: HandClock
    channel: grpc.aio.Channel

    def control_plane(self) -> HandControlPlane:
        return HandControlPlane(self.channel)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"pypto_serving_worker_{name}", labels)


DESCRIPTION = WorkerDescription(
    incarnation="worker-1",
    model_fingerprint=FINGERPRINT,
    numerics_id="float32/fake",
    vocab_size=100,
    max_model_len=64,
    max_lanes=4,
    max_step_tokens=32,
    max_steps_in_flight=2,
    lease_seconds=0.4,
    num_partitions=1,
    cache_groups=(CacheGroup("full", page_tokens=16, num_pages=8, num_layers=2, row_bytes=256),),
)


@asynccontextmanager
async def serve_rig() -> AsyncIterator[Rig]:
    """Serve a worker; afterwards its device thread has ended."""
    runner, progress, metrics, clock = FakeRunner(), ProgressCounter(), WorkerMetrics(), HandClock()
    device = DeviceThread(progress)
    servicer = WorkerServicer(DESCRIPTION, device, progress, metrics, clock)
    device.serve(runner, servicer)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    timekeeper = asyncio.create_task(servicer.keep_time())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
        yield Rig(runner, servicer, metrics, clock, channel)
    runner.gate.set()
    timekeeper.cancel()
    await server.stop(None)
    assert device.stop(timeout_seconds=10)
