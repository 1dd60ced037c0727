"""The assembled control plane, in the event loop of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from control_plane.edge.flags.programs import read_config
from control_plane.edge.server.one_process import ControlPlane
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.process.stop_requests import StopRequests

SERVICE = "pypto_serving.inference.v1.InferenceService"


class RunningControlPlane:
    """A control plane in this event loop, and stubs for it."""

    def __init__(self, plane: ControlPlane, stop: StopRequests) -> None:
        self.plane, self.stop = plane, stop
        self.task = asyncio.ensure_future(plane.run())
        self.channels: list[grpc.aio.Channel] = []

    async def started(self) -> None:
        while not self.plane.ports:
            await asyncio.sleep(0.005)
            if self.task.done():
                self.task.result()

    def channel(self, purpose: str = "address", credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
        target = f"127.0.0.1:{self.plane.ports[purpose]}"
        self.channels.append(grpc.aio.secure_channel(target, credentials) if credentials else grpc.aio.insecure_channel(target))
        return self.channels[-1]

    @property
    def stub(self) -> "inference_pb2_grpc.InferenceServiceAsyncStub":
        return inference_pb2_grpc.InferenceServiceStub(self.channel())

    async def health_becomes(self, status: int, credentials: grpc.ChannelCredentials | None = None) -> None:
        stub = health_pb2_grpc.HealthStub(self.channel(credentials=credentials))
        while (await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))).status != status:
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        self.stop.request_stop()
        self.stop.request_stop()
        await self.task
        for channel in self.channels:
            await channel.close(None)


@asynccontextmanager
async def running(model: Path, *flags: str) -> AsyncIterator[RunningControlPlane]:
    ports = ("--port", "0", "--metrics-port", "0", "--announce-port", "0", "--admin-port", "0")
    stop = StopRequests()
    server = RunningControlPlane(ControlPlane(read_config(["--model", str(model), *ports, *flags]), stop), stop)
    try:
        await server.started()
        yield server
    finally:
        if not server.task.done():
            await server.close()
