"""A worker with a real, tiny model, served on the event loop of the test."""

from pathlib import Path

import grpc.aio

from pypto_serving.wire.fingerprint import fingerprint_model
from worker.config import read_config
from worker.loaded_runner import load_runner
from worker.operator_profile import OperatorProfile
from worker.progress import ProgressCounter
from worker.service.channel_options import CHANNEL_OPTIONS
from worker.service.device_thread import DeviceThread
from worker.service.metrics import WorkerMetrics
from worker.service.server import WorkerServer
from worker.service.servicer import WorkerServicer

_FLAGS = ("--device", "cpu", "--threads", "1", "--dtype", "float32", "--page-tokens", "4", "--num-pages", "32", "--max-lanes", "4")


class ServedWorker:
    """What `python -m worker` runs, without the process around it; further flags as on its command line."""

    def __init__(self, model: Path, *flags: str) -> None:
        self._config = read_config(["--model", str(model), *_FLAGS, *flags])
        self.fingerprint = fingerprint_model(model)
        self.metrics = WorkerMetrics()
        self.device: DeviceThread
        self.servicer: WorkerServicer
        self.server: WorkerServer
        self.channel: grpc.aio.Channel
        self.address = ""

    async def start(self, incarnation: str = "worker-1") -> None:
        """Load and serve on a free port."""
        progress = ProgressCounter()
        self.device = DeviceThread(progress)
        loaded = await self.device.call(lambda: load_runner(self._config, progress))
        description = loaded.describe(incarnation, self._config.max_steps_in_flight, self._config.lease_seconds)
        self.servicer = WorkerServicer(description, self.device, progress, self.metrics, operators=OperatorProfile)
        self.device.serve(loaded.runner, self.servicer)
        self.server = WorkerServer(self.servicer)
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}"
        self.channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)

    async def stop(self) -> None:
        """Stop serving, and end the device thread."""
        await self.channel.close(None)
        await self.server.stop("the test is over")
        assert self.device.stop(timeout_seconds=10)
