"""A control plane in one of its forms and two workers, each process behind a proxy, each started again when it dies.

clients --proxy--> control plane --proxy--------------> worker 0
                                 --proxy--frame proxy-> worker 1
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc.aio
from chaos.control_planes import ControlPlane, OneProcess
from chaos.frame_proxy import FrameProxy
from chaos.supervised_process import SupervisedProcess
from fakes.network.tcp_proxy import TcpProxy
from harness.processes import fixed_ports

from clients import AsyncClient
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc

NUM_WORKERS = 2

# A link this slow lets tiny models decode at a speed that leaves time for faults.
_LINK_SECONDS = 0.004
# Short, so that a worker that lost its control plane is free again soon.
_LEASE_SECONDS = "2"
_DRAIN_SECONDS = "2"
_PATIENCE_SECONDS = 240.0


class Cluster:
    """Everything runs in the background while the `async with` block does. `num_pages` is the KV memory of each worker.

    Workers run `worker_module`.
    """

    def __init__(
        self,
        model: Path,
        logs: Path,
        num_pages: int,
        seed: int,
        form: Callable[[list[str], list[str], Path], ControlPlane] = OneProcess,
        worker_module: str = "worker",
    ) -> None:
        self.logs = logs
        self._num_pages = num_pages
        worker_ports = fixed_ports(NUM_WORKERS)
        self.frames = FrameProxy(f"127.0.0.1:{worker_ports[1]}", seed)
        targets = [f"127.0.0.1:{worker_ports[0]}", self.frames.address]
        common = ["--model", str(model), "--log-format", "json"]
        flags = ["--device", "cpu", "--threads", "1", "--num-pages", str(num_pages)]
        flags += ["--lease-seconds", _LEASE_SECONDS, "--drain-seconds", _DRAIN_SECONDS]
        self.workers = [
            SupervisedProcess([worker_module, *common, *flags], port, TcpProxy(target, proxy_port), logs / f"worker-{index}.log")
            for index, (port, target, proxy_port) in enumerate(zip(worker_ports, targets, fixed_ports(NUM_WORKERS), strict=True))
        ]
        self.control = form(common, [flag for worker in self.workers for flag in ("--worker", worker.proxy.address)], logs)
        self._running: list[asyncio.Task[None]] = []

    @property
    def processes(self) -> dict[str, SupervisedProcess]:
        """All of them by name."""
        return self.control.processes | {f"worker {index}": worker for index, worker in enumerate(self.workers)}

    def pids(self) -> dict[str, int]:
        """Ids of all that run now, by name."""
        return self.control.pids | {f"worker {index}": worker.pid for index, worker in enumerate(self.workers)}

    async def __aenter__(self) -> Self:
        await self.frames.start()
        for worker in self.workers:
            worker.proxy.delay_seconds = _LINK_SECONDS
        self._running = [asyncio.create_task(process.run()) for process in self.processes.values()]
        try:
            await self.become_ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._end()

    async def _end(self) -> None:
        for process in self.processes.values():
            process.end()
        async with asyncio.timeout(40):
            await asyncio.gather(*self._running)
        await self.frames.stop()

    def client(self) -> AsyncClient:
        """A client that does not give up easily."""
        targets = [proxy.address for proxy in self.control.proxies]
        return AsyncClient(targets, connect_seconds=_PATIENCE_SECONDS, resume_seconds=_PATIENCE_SECONDS)

    @contextlib.asynccontextmanager
    async def plain_channels(self, num: int) -> AsyncIterator[list[grpc.aio.Channel]]:
        """Connections of clients that have nothing of ours, to the ports for calls in turn, with no proxy in between."""
        ports, options = itertools.cycle(self.control.call_ports), (("grpc.use_local_subchannel_pool", 1),)
        async with contextlib.AsyncExitStack() as stack:
            channels = [grpc.aio.insecure_channel(f"127.0.0.1:{next(ports)}", options) for _ in range(num)]
            yield [await stack.enter_async_context(channel) for channel in channels]

    async def become_ready(self) -> None:
        """Wait until it serves with all workers in session."""
        async with asyncio.timeout(_PATIENCE_SECONDS), self.client() as client:
            while not await client.is_serving() or (await client.server()).num_workers < NUM_WORKERS:
                await asyncio.sleep(0.05)

    async def state(self) -> admin_pb2.GetStateResponse:
        """What the control plane holds."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.control.admin_port}") as channel:
            request = admin_pb2.GetStateRequest(with_sequences=True)
            return await admin_pb2_grpc.AdminServiceStub(channel).GetState(request, timeout=10)

    async def come_to_rest(self) -> None:
        """Wait until nothing runs; raises AssertionError when requests, lanes or pages are left, or a process has died by itself."""
        await self.become_ready()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while await self._leftovers():
                    await asyncio.sleep(0.05)
        leftovers = await self._leftovers()
        assert not leftovers, leftovers
        ends = {name: process.unexpected_exit_codes for name, process in self.processes.items() if process.unexpected_exit_codes}
        assert not ends, f"ended by themselves, with exit codes: {ends}"

    async def _leftovers(self) -> str:
        """What is still held somewhere."""
        state = await self.state()
        if state.sequences or state.num_waiting:
            return f"requests are left: {state}"
        if len(state.workers) < NUM_WORKERS:
            return f"workers are missing: {state}"
        if any(worker.pages.free + worker.pages.cached != self._num_pages for worker in state.workers):
            return f"pages are lost: {state}"
        samples = [await asyncio.to_thread(worker.metrics) for worker in self.workers]
        held = [sample[f"pypto_serving_worker_{name}"] for sample in samples for name in ("lanes", "steps_in_flight")]
        if any(held):
            return f"the workers hold {held} lanes and steps"
        samples = await asyncio.to_thread(self.control.metrics)
        received = samples["pypto_serving_requests_received_total"]
        finished = sum(value for name, value in samples.items() if name.startswith("pypto_serving_requests_finished_total"))
        return "" if received == finished else f"{received:g} requests were received, {finished:g} have finished"
