"""The gRPC service for operators."""

from collections.abc import Callable
from typing import Any

import grpc.aio

from control_plane.edge.engine_thread import EngineThread
from control_plane.engine.metrics_port import WorkerGauges
from control_plane.engine.state import SequenceState
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Lives on the clients' event loop, asks the engine on its own."""

    def __init__(self, engine: EngineThread, start_drain: Callable[[], None]) -> None:
        self._engine = engine
        self._start_drain = start_drain

    async def GetState(self, request: admin_pb2.GetStateRequest, context: _Context) -> admin_pb2.GetStateResponse:
        """A consistent picture; prompts and output are no part of it."""
        state = await self._engine.call(lambda engine: engine.snapshot(request.with_sequences))
        return admin_pb2.GetStateResponse(
            workers=[_worker(worker) for worker in state.gauges.workers],
            sequences=[_sequence(sequence) for sequence in state.sequences],
            num_waiting=state.gauges.num_waiting_for_capacity + state.gauges.num_waiting_for_worker,
        )

    async def ResetPrefixCache(self, request: admin_pb2.ResetPrefixCacheRequest, context: _Context) -> admin_pb2.ResetPrefixCacheResponse:
        """Forget cached pages that nobody uses."""
        return admin_pb2.ResetPrefixCacheResponse(num_pages=await self._engine.call(lambda engine: engine.reset_prefix_cache()))

    async def Drain(self, request: admin_pb2.DrainRequest, context: _Context) -> admin_pb2.DrainResponse:
        """Do what SIGTERM does."""
        self._start_drain()
        return admin_pb2.DrainResponse(num_running=self._engine.gauges.num_running)


def _worker(worker: WorkerGauges) -> admin_pb2.WorkerState:
    return admin_pb2.WorkerState(
        address=worker.address,
        incarnation=worker.incarnation,
        epoch=worker.epoch,
        numerics_id=worker.numerics_id,
        sent_step_id=worker.sent_step_id,
        acked_step_id=worker.acked_step_id,
        num_running=worker.num_running,
        pages=admin_pb2.PageCounts(
            free=worker.pages.free, fenced=worker.pages.fenced, cached=worker.pages.cached, referenced=worker.pages.referenced
        ),
    )


def _sequence(sequence: SequenceState) -> admin_pb2.SequenceState:
    return admin_pb2.SequenceState(
        request_id=sequence.request_id,
        choice=sequence.choice,
        worker=sequence.worker,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_generated_tokens=sequence.num_generated_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_pages=sequence.num_pages,
    )
