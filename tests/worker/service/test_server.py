import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from harness.checkpoints import TinyCheckpoint
from harness.served_worker import ServedWorker

from pypto_serving.process.stop_requests import StopRequests
from pypto_serving.worker.v1 import worker_pb2_grpc
from worker.service.server import WorkerServer


async def test_a_timekeeper_that_fails_ends_the_worker() -> None:
    class Servicer(worker_pb2_grpc.WorkerServiceServicer):
        failure = ""

        async def keep_time(self) -> None:
            raise ZeroDivisionError("no time")

        def device_failed(self, message: str) -> None:
            self.failure = message

    servicer = Servicer()
    server = WorkerServer(servicer)  # type: ignore[arg-type]
    await server.start("127.0.0.1", 0)
    await asyncio.sleep(0.01)
    assert servicer.failure == "the time is not kept any more: ZeroDivisionError('no time')"
    await server._server.stop(None)


async def test_a_watcher_that_does_not_read_holds_no_change_of_health_up() -> None:
    class Servicer(worker_pb2_grpc.WorkerServiceServicer):
        is_idle = True

        async def keep_time(self) -> None:
            await asyncio.Event().wait()

        def drain(self) -> None:
            pass

    server, stop = WorkerServer(Servicer()), StopRequests()  # type: ignore[arg-type]
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    small_window = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    async with grpc.aio.insecure_channel(address, options=small_window) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        sleeper = health.Watch(health_pb2.HealthCheckRequest())
        await sleeper.read()
        for number in range(1000):
            server._set_health(number % 2 == 0)
            await asyncio.sleep(0)
        await server.drain(stop, seconds=0.0)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.NOT_SERVING
    server._timekeeper.cancel()
    await server._server.stop(None)


async def test_health_and_reflection_are_served(tiny_checkpoint: TinyCheckpoint) -> None:
    worker = ServedWorker(tiny_checkpoint("llama"))
    await worker.start()
    for service in ("", "pypto_serving.worker.v1.WorkerService"):
        health = await health_pb2_grpc.HealthStub(worker.channel).Check(health_pb2.HealthCheckRequest(service=service))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
    call = reflection_pb2_grpc.ServerReflectionStub(worker.channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    services = {service.name for service in (await call.read()).list_services_response.service}
    assert {"pypto_serving.worker.v1.WorkerService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= services
    call.cancel()
    await worker.stop()
