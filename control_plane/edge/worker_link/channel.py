"""The channel to a worker.

Dead peers are found by our own frames (see watchdog), not by HTTP/2 keepalive: a worker whose Python loop is blocked still answers pings.
"""

from dataclasses import dataclass

import grpc
import grpc.aio

from pypto_serving.process.address import proxy_options
from pypto_serving.process.credentials.tls import ReloadedTls, channel_credentials
from pypto_serving.wire.contract import MAX_MESSAGE_BYTES

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


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """Certificates for the links to workers. `name`: the host that theirs must name; None: the one dialled."""

    files: ReloadedTls
    name: str | None = None


def open_channel(address: str, tls: WorkerTls | None) -> grpc.aio.Channel:
    """A channel that shows and trusts what the files say now."""
    options = (*WORKER_CHANNEL, *proxy_options(address))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    name = (("grpc.ssl_target_name_override", tls.name),) if tls.name else ()
    return grpc.aio.secure_channel(address, channel_credentials(tls.files.current()), options=(*options, *name))
