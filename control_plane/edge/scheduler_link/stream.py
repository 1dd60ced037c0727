"""One Connect call to a scheduler, from the dial to the end of the stream."""

import asyncio
import contextlib
import enum
from collections.abc import Iterator

import grpc
import grpc.aio

from control_plane.edge.scheduler_link.options import SchedulerLinkOptions
from control_plane.edge.session_contract import MESSAGE_SIZES, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from pypto_serving.process.address import proxy_options
from pypto_serving.process.connection_problems import connection_problem, explained
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.scheduler.v1 import scheduler_pb2_grpc
from pypto_serving.wire.checks import FrameError, check_name, check_range
from pypto_serving.wire.contract import LOG_LEVELS, RECORDINGS

#: Every dial takes a fresh channel, so that gRPC's own backoff never delays it; the reconnect times only keep the attempt short.
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *MESSAGE_SIZES,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)

_TLS_FLAGS = "--link-tls-ca, --link-tls-cert, --link-tls-key on both, --link-tls-name"

#: By which a scheduler says that it could not bear what was sent, or that it has something which cannot be told.
_CONTENT_CODES = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED)

#: What gRPC says itself when a write fails on a stream that has ended, before it knows how.
_WRITE_FAILED = "Internal error from Core"


class LossCause(enum.Enum):
    """What the loss of a session means for the requests that ran in it."""

    BROKEN = enum.auto()  # the stream; whether the scheduler has died shows in the next session
    FAREWELL = enum.auto()  # the scheduler goes in good order
    CONTENT = enum.auto()  # one side could not bear what the other sent


class SessionLost(Exception):
    """A session did not come about, or ended; the message says why.

    `may_be_back`: the scheduler, or one that was started in its place. `is_missing`: nobody is there, or nobody who serves.
    """

    def __init__(self, reason: str, cause: LossCause = LossCause.BROKEN, may_be_back: bool = False, is_missing: bool = False) -> None:
        super().__init__(reason)
        self.is_missing = is_missing
        self.cause = cause
        self.may_be_back = may_be_back


@contextlib.contextmanager
def channel_of_session() -> Iterator[None]:
    """Within the block a call of the scheduler whose channel is closed raises SessionLost: gRPC cancels it, as if its caller had gone."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise SessionLost("the session has ended") from None


class SessionStream:
    """An open stream of frames."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        self._call: grpc.aio.StreamStreamCall[pb.ConnectRequest, pb.ConnectResponse]
        self._call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Connect(None)

    async def write(self, frame: pb.ConnectRequest) -> bool:
        """Write a frame; returns whether the stream takes more. Why it does not is for `read` to say."""
        try:
            await self._call.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def read(self) -> pb.ConnectResponse:
        """Wait for the next frame; raises SessionLost when the stream ends and FrameError for what is no frame."""
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _loss(error) from None
        if frame is None:  # gRPC could not parse it
            raise FrameError("not a frame of the protocol")
        if not isinstance(frame, pb.ConnectResponse):
            raise SessionLost("the scheduler ended the stream")
        return frame

    async def greet(self, hello: pb.Hello) -> pb.Welcome:
        """Send Hello and wait for Welcome; raises as `read` does."""
        await self.write(pb.ConnectRequest(hello=hello))
        frame = await self.read()
        if not frame.HasField("welcome"):
            raise FrameError(f"the first frame is {frame.WhichOneof('frame')}, must be welcome")
        check_range("welcome.protocol_version", frame.welcome.protocol_version, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION)
        check_name("welcome.scheduler_id", frame.welcome.scheduler_id)
        return frame.welcome

    async def end_writing(self) -> None:
        """Say that nothing comes any more."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    async def close(self) -> None:
        """End the stream and the connection."""
        self._call.cancel()
        await self.channel.close(grace=None)


def _loss(error: grpc.aio.AioRpcError) -> SessionLost:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.INTERNAL and details == _WRITE_FAILED:
        return SessionLost("the stream has ended, while this process wrote or stood still", may_be_back=True)
    cause = LossCause.CONTENT if code in _CONTENT_CODES else LossCause.BROKEN
    is_missing = code is grpc.StatusCode.UNAVAILABLE and connection_problem(details or "") is None
    return SessionLost(explained(code.name, details, _TLS_FLAGS), cause, may_be_back=True, is_missing=is_missing)


async def open_stream(address: str, options: SchedulerLinkOptions) -> tuple[SessionStream, pb.Welcome]:
    """Dial a scheduler and shake hands; raises SessionLost."""
    hello = pb.Hello(
        protocol_version=PROTOCOL_VERSION,
        min_protocol_version=MIN_PROTOCOL_VERSION,
        front_end_id=options.front_end_id,
        model_fingerprint=options.model_fingerprint,
        features=[RECORDINGS, LOG_LEVELS],
        model_name=options.model_name,
    )
    async with contextlib.AsyncExitStack() as cleanup:
        stream = SessionStream(address, _open_channel(address, options))
        cleanup.push_async_callback(stream.close)
        try:
            async with asyncio.timeout(options.handshake_seconds):
                welcome = await stream.greet(hello)
        except TimeoutError:
            raise SessionLost(f"no welcome within {options.handshake_seconds:g} s") from None
        except FrameError as error:
            raise SessionLost(f"broken handshake: {error}") from None
        cleanup.pop_all()
    return stream, welcome


def _open_channel(address: str, options: SchedulerLinkOptions) -> grpc.aio.Channel:
    channel_options = (*_CHANNEL_OPTIONS, *proxy_options(address))
    if options.credentials is None:
        return grpc.aio.insecure_channel(address, options=channel_options)
    name = (("grpc.ssl_target_name_override", options.tls_name),) if options.tls_name else ()
    return grpc.aio.secure_channel(address, options.credentials(), options=(*channel_options, *name))
