"""One Execute call to a worker: from a probe of its port to the end of the stream."""

import asyncio
import contextlib
import enum
import math
import socket
from typing import Any, NoReturn

import grpc
import grpc.aio

from control_plane.edge.worker_link.options import LinkOptions, WorkerTls
from pypto_serving.process.address import proxy_options, split_address
from pypto_serving.process.connection_problems import explained
from pypto_serving.process.credentials.tls import channel_credentials
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.contract import MAX_MESSAGE_BYTES, RETRY_AFTER_MS
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc

#: Dead peers are found by our own frames (see Watchdog), not by keepalive of HTTP/2: a worker whose loop is blocked still answers pings.
#: Every dial takes a fresh channel, so that gRPC's own backoff never delays it; the reconnect times only keep the first attempt short.
WORKER_CHANNEL: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)

_TLS_FLAGS = "--worker-tls-ca, --worker-tls-cert, --worker-tls-key, --worker-tls-name; on the worker --tls-cert, --tls-client-ca"

#: The worker understood us and does not want to go on like this; the same again would end the same way.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


class PortAnswer(enum.Enum):
    """What became of a connection."""

    OPEN = "open"
    REFUSED = "connection refused"
    SILENT = "no connection in time"
    UNREACHABLE = "cannot connect"


async def probe_port(address: str, timeout_seconds: float) -> PortAnswer:
    """Connect to host:port and hang up; tries every address that the name stands for.

    Tells a dead process from an unreachable one, which gRPC does not: a refused connection means that nobody is there.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _probe_each(*split_address(address))
    except TimeoutError:
        return PortAnswer.SILENT


async def _probe_each(host: str, port: int) -> PortAnswer:
    loop = asyncio.get_running_loop()
    answer = PortAnswer.UNREACHABLE
    try:
        candidates = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # unknown, or not even a name
        return answer
    for family, kind, protocol, _, endpoint in candidates:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.setblocking(False)
                await loop.sock_connect(tried, endpoint)
        except ConnectionRefusedError:
            answer = PortAnswer.REFUSED
        except OSError:
            continue
        else:
            return PortAnswer.OPEN
    return answer


class LinkBroken(Exception):
    """A stream did not come about, or ended; the message says why.

    `is_refusal`: the worker is there and refuses. `is_final`: an earlier session cannot go on. `retry_seconds`: when the refusal may end.
    """

    def __init__(self, reason: str, is_refusal: bool = False, is_final: bool = False, retry_seconds: float = math.inf) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal
        self.is_final = is_final or is_refusal
        self.retry_seconds = retry_seconds


class FrameStream:
    """An open stream of frames. `send` never waits: a writer task drains what it leaves."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._call: grpc.aio.StreamStreamCall[worker_pb2.ExecuteRequest, worker_pb2.ExecuteResponse]
        self._call = worker_pb2_grpc.WorkerServiceStub(channel).Execute(None)
        self._outbox: asyncio.Queue[worker_pb2.ExecuteRequest | None] = asyncio.Queue()  # None: the last one was sent
        self._has_ended = asyncio.Event()

    @property
    def is_backed_up(self) -> bool:
        """Whether frames wait for the writer."""
        return not self._outbox.empty()

    def send(self, frame: worker_pb2.ExecuteRequest) -> None:
        """Leave a frame for the writer."""
        self._outbox.put_nowait(frame)

    async def finish(self, seconds: float) -> None:
        """Say that no more frames will come, and wait up to `seconds` until the worker has heard it; others have to write and receive."""
        self._outbox.put_nowait(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_ended.wait()

    async def write(self) -> None:
        """Write what is sent, until the stream ends; how it ended is for `receive` to say."""
        try:
            while (frame := await self._outbox.get()) is not None:
                await self._call.write(frame)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def receive(self) -> worker_pb2.ExecuteResponse:
        """Wait for the next frame; raises LinkBroken when the stream ends and FrameError for what is no frame."""
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._has_ended.set()
            _raise_broken(error)
        if frame is None:  # gRPC could not parse it
            raise FrameError("not a frame of the protocol")
        if not isinstance(frame, worker_pb2.ExecuteResponse):
            self._has_ended.set()
            raise LinkBroken("the worker ended the stream")
        return frame

    async def greet(self, hello: worker_pb2.Hello) -> worker_pb2.Welcome:
        """Send Hello and wait for Welcome; raises as `receive` does."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the read says why
            await self._call.write(worker_pb2.ExecuteRequest(hello=hello))
        frame = await self.receive()
        if not frame.HasField("welcome"):
            raise FrameError(f"the first frame is {frame.WhichOneof('frame')}, must be welcome")
        return frame.welcome

    async def close(self) -> None:
        """End the stream and the connection."""
        self._call.cancel()
        await self._channel.close(grace=None)


def open_channel(address: str, tls: WorkerTls | None) -> grpc.aio.Channel:
    """A channel that shows and trusts what the files say now."""
    options = (*WORKER_CHANNEL, *proxy_options(address))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    name = (("grpc.ssl_target_name_override", tls.name),) if tls.name else ()
    return grpc.aio.secure_channel(address, channel_credentials(tls.files.current()), options=(*options, *name))


async def open_stream(address: str, hello: worker_pb2.Hello, options: LinkOptions) -> tuple[FrameStream, worker_pb2.Welcome]:
    """Dial a worker and shake hands; raises LinkBroken."""
    answer = await probe_port(address, options.connect_seconds)
    if answer is not PortAnswer.OPEN:
        raise LinkBroken(answer.value, is_final=answer is PortAnswer.REFUSED)
    stream = FrameStream(open_channel(address, options.tls))
    try:
        async with asyncio.timeout(options.handshake_seconds):
            return stream, await stream.greet(hello)
    except TimeoutError:
        await stream.close()
        raise LinkBroken(f"no welcome within {options.handshake_seconds:g} s") from None
    except FrameError as error:
        await stream.close()
        raise LinkBroken(f"broken handshake: {error}", is_refusal=True) from error
    except BaseException:
        await stream.close()
        raise


def _raise_broken(error: grpc.aio.AioRpcError) -> NoReturn:
    reason = explained(error.code().name, error.details(), _TLS_FLAGS)
    metadata: Any = error.trailing_metadata() or ()  # pairs, which its type does not say
    retry_ms = str(dict(metadata).get(RETRY_AFTER_MS, ""))
    retry_seconds = int(retry_ms) / 1000 if retry_ms.isdecimal() else math.inf
    raise LinkBroken(reason, is_refusal=error.code() in _REFUSALS, retry_seconds=retry_seconds) from None
