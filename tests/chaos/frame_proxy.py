"""A proxy between a control plane and a worker that duplicates, reorders and delays frames, as far as the protocol allows it."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from control_plane.edge.worker_link.stream import WORKER_CHANNEL
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc
from worker.service.channel_options import SERVER_OPTIONS

Frame = worker_pb2.ExecuteRequest | worker_pb2.ExecuteResponse

#: More than once, or late, these break the contract; all others are dropped, or answered with a Reset.
_IN_ORDER = frozenset({"step", "reset"})
_NUM_REMEMBERED = 64


class Mischief:
    """Disturbs the frames of one direction. `rate` of them are repeated, swapped with the next, or followed by one of an earlier epoch."""

    def __init__(self, chance: random.Random) -> None:
        self.rate = 0.0
        self._chance = chance
        self._past: deque[Frame] = deque(maxlen=_NUM_REMEMBERED)
        self._held: Frame | None = None

    def forget_held(self) -> None:
        """A new stream: what an earlier one held back is lost."""
        self._held = None

    def pass_on(self, frame: Frame) -> list[Frame]:
        """What is sent instead of a frame."""
        kind = frame.WhichOneof("frame")
        if kind in ("hello", "welcome"):
            return [frame]
        frames = [frame, self._held] if self._held else [frame]
        late = [old for old in self._past if old.epoch != frame.epoch]
        self._held = None
        self._past.append(frame)
        if self._chance.random() >= self.rate:
            return frames
        match self._chance.choice(["repeat", "swap", "late"]):
            case "repeat" if kind not in _IN_ORDER:
                return [*frames, frame]
            case "swap" if kind not in _IN_ORDER and len(frames) == 1:
                self._held = frame
                return []
            case "late" if late:
                return [*frames, self._chance.choice(late)]
        return frames


class FrameProxy(worker_pb2_grpc.WorkerServiceServicer):
    """Serves the worker protocol on a port of its own and forwards every frame to a worker."""

    def __init__(self, worker: str, seed: int) -> None:
        self.requests = Mischief(random.Random(f"{seed} requests"))
        self.responses = Mischief(random.Random(f"{seed} responses"))
        self._worker = worker
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def stop(self) -> None:
        """End every stream."""
        await self._server.stop(None)

    async def Execute(self, requests: AsyncIterator[worker_pb2.ExecuteRequest], context: Any) -> None:
        """See worker.proto."""
        self.requests.forget_held()
        self.responses.forget_held()
        async with grpc.aio.insecure_channel(self._worker, options=WORKER_CHANNEL) as channel:
            call = worker_pb2_grpc.WorkerServiceStub(channel).Execute(None)
            forwarding = asyncio.create_task(self._forward(requests, call))
            try:
                while isinstance(frame := await call.read(), worker_pb2.ExecuteResponse):
                    for response in self.responses.pass_on(frame):
                        await context.write(response)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            finally:
                forwarding.cancel()
                call.cancel()

    async def _forward(self, requests: AsyncIterator[worker_pb2.ExecuteRequest], call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader says how the stream ended
            async for frame in requests:
                for request in self.requests.pass_on(frame):
                    await call.write(request)
            await call.done_writing()
