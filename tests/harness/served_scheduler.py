"""A scheduler's side of the sessions on a socket, with a fake engine behind it; and a raw front end that speaks to it frame by frame."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
from fakes.control_plane.front_end_calls import Call
from fakes.control_plane.hostile_service import Change, add_hostile_service
from fakes.control_plane.session_engine import VOCAB_SIZE, SessionEngine
from harness.waiting import until

from control_plane.edge.frontend_link.service import SERVER_OPTIONS, SchedulerService, SessionOptions
from control_plane.edge.session_contract import MESSAGE_SIZES
from control_plane.engine.snapshot import RefusedWorker
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.scheduler.v1 import scheduler_pb2_grpc


class ServedScheduler:
    """Starts and dies as often as a test wants, each time with another id and an engine that knows nothing."""

    def __init__(self, path: Path, **options: Any) -> None:
        """`options` of its sessions; `clock`: theirs."""
        self.address = f"unix:{path}"
        self._clock: Callable[[], float] = options.pop("clock", time.monotonic)
        seconds = {"heartbeat_seconds": 0.02, "settle_seconds": 0.0}
        self._options = {"model_fingerprint": "model", "vocab_size": VOCAB_SIZE, **seconds, **options}
        self._num_starts = 0
        self.change: Change | None = None  # of what is sent from the next start on; the engine then trusts what comes back of it
        self.refused_workers: list[RefusedWorker] = []
        self._server: grpc.aio.Server | None = None
        self.engine = SessionEngine()
        self.service: SchedulerService

    @property
    def runs(self) -> bool:
        return self._server is not None

    async def start(self, stands_by: bool = False, **engine: Any) -> None:
        """Serve; `engine`: options of its engine."""
        self._num_starts += 1
        self.engine = SessionEngine(checks_resumes=self.change is None, **engine)
        options = SessionOptions(scheduler_id=f"{self.address} {self._num_starts}", **self._options)
        self.service = SchedulerService(self.engine, options, clock=self._clock, refused_workers=lambda: self.refused_workers)
        server = self._server = grpc.aio.server(options=SERVER_OPTIONS)
        if self.change:
            add_hostile_service(self.service, server, self.change)
        else:
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.service, server)
        assert server.add_insecure_port(self.address)
        await server.start()
        if not stands_by:
            self.service.open()

    async def kill(self) -> None:
        """End without a word; what is not written yet is lost."""
        server, self._server = self._server, None
        if server:
            await server.stop(None)

    async def has(self, *request_ids: str) -> None:
        """Wait until its engine has requests."""
        await until(lambda: set(request_ids) <= self.engine.live.keys())

    async def step(self, call: Call, num_tokens: int, only: bool = False) -> None:
        """Let a call of one choice have so many tokens. `only`: nothing else runs."""
        [number] = call.tokens
        await self.has(call.request.request_id)
        for count in range(len(call.tokens[number]) + 1, num_tokens + 1):
            self.engine.step(lambda request_id: not only or request_id == call.request.request_id)
            await until(partial(self._has_tokens, call, number, count))

    @staticmethod
    def _has_tokens(call: Call, number: int, count: int) -> bool:
        return len(call.tokens[number]) == count

    async def step_to_end(self, call: Call) -> None:
        """Run until a call has ended."""
        while not call.has_ended:
            self.engine.step()
            await asyncio.sleep(0.001)

    async def cut(self, front_end_id: str = "front end") -> None:
        """End the session of a front end, and serve on."""
        newer = RawFrontEnd(self.address)
        await newer.hello(front_end_id)
        await newer.close()

    async def leave(self) -> None:
        """End in good order."""
        server, self._server = self._server, None
        if server:
            self.service.close()
            await server.stop(5)


class RawFrontEnd:
    """A Connect stream of which a test writes and reads every frame."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=(*MESSAGE_SIZES, ("grpc.use_local_subchannel_pool", 1)))
        self.stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)
        self._call = self.stub.Connect(None)

    async def hello(self, front_end_id: str = "front end", **fields: Any) -> pb.Welcome:
        """Open the session."""
        defaults = {"protocol_version": 1, "min_protocol_version": 1, "model_fingerprint": "model"}
        await self.write(hello=pb.Hello(front_end_id=front_end_id, **{**defaults, **fields}))
        return (await self.read("welcome")).welcome

    async def write(self, **frame: Any) -> None:
        await self._call.write(pb.ConnectRequest(**frame))

    async def command(self, *commands: pb.Command) -> None:
        await self.write(commands=pb.Commands(commands=commands))

    async def read(self, kind: str) -> pb.ConnectResponse:
        """The next frame of a kind; others are skipped."""
        while True:
            frame: Any = await self._call.read()
            if frame.WhichOneof("frame") == kind:
                return frame

    async def outputs(self) -> list[pb.Outputs]:
        """The passes in the next message of them."""
        return list((await self.read("passes")).passes.passes)

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the scheduler ends the stream; what it wrote before that is skipped."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await self._call.read(), pb.ConnectResponse):
                pass
        return await self._call.code(), await self._call.details()

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close(None)
