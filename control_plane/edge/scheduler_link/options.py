"""Options of a front end's link to the scheduler, and what the link needs of the process around it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from control_plane.edge.profiling.profiler import LocalRecorder
from control_plane.edge.session_contract import HEARTBEAT_SECONDS, MAX_SILENCE_SECONDS
from control_plane.engine.ports import Outputs
from pypto_serving.log.v1 import log_pb2
from pypto_serving.wire.contract import MAX_VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class SchedulerLinkOptions:
    """How schedulers are dialled and watched, and what becomes of requests without one."""

    addresses: Sequence[str]  # host:port or unix:/path; dialled in turn until one answers
    front_end_id: str  # new at every start of the process
    model_fingerprint: str
    model_name: str = ""  # for people
    vocab_size: int = MAX_VOCAB_SIZE
    credentials: Callable[[], grpc.ChannelCredentials] | None = None  # asked for at every dial; None: plain text
    tls_name: str | None = None  # the host that a scheduler's certificate must name; None: the one dialled
    grace_seconds: float = 30.0  # for which requests wait for a scheduler
    max_losses: int = 8  # schedulers in a row that a request may lose without a token in between: it may be what kills them
    handshake_seconds: float = 5.0
    min_pause_seconds: float = 0.05  # between two rounds of dials; grows with the outage
    max_pause_seconds: float = 1.0
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    max_silence_seconds: float = MAX_SILENCE_SECONDS
    metrics_seconds: float = 1.0  # between two copies of the metrics that the scheduler gets

    def pause_seconds(self, outage_seconds: float) -> float:
        """How long to wait before all addresses are dialled again: a scheduler that is back is found after a tenth of its absence."""
        return min(max(outage_seconds / 10, self.min_pause_seconds), self.max_pause_seconds)


@dataclass(frozen=True, slots=True)
class FrontEndNumbers:
    """What a front end tells of itself."""

    num_calls: int = 0
    num_held_back: int = 0
    num_unwritten_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FrontEndSide:
    """The process around the link. All of it is called on the link's event loop."""

    deliver: Callable[[Outputs], None]  # to the calls: what the engine brings
    drained: Callable[[], None]  # the operator drains all
    numbers: Callable[[], FrontEndNumbers]  # which the scheduler is told with every sign of life
    metrics: Callable[[], bytes] | None = None  # Prometheus' text, which it is told now and then
    record: LocalRecorder = lambda recorder: None  # begins to record what calls are given, or ends with None
    set_log_level: Callable[[log_pb2.LevelChange], None] = lambda change: None  # raises FrameError

    def deliver_soon(self, outputs: Outputs) -> None:
        """Deliver in a turn of its own: what calls do with their output is no concern of the session."""
        asyncio.get_running_loop().call_soon(self.deliver, outputs)
