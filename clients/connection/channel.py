"""Channels to a server, and the options that all of them share."""

import grpc

from pypto_serving.process.address import proxy_options

#: Largest request in bytes, which is the server's limit, and largest response.
MAX_REQUEST_BYTES = 16 * 1024 * 1024
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

#: Where a server listens unless told otherwise.
DEFAULT_TARGET = "127.0.0.1:50051"

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    # A frozen or unplugged peer is noticed after 15 s; grpc.keepalive_timeout_ms alone takes a minute.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnection is paced by our own backoff; gRPC's own would sit out up to two minutes. The minimum is also the time given to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # One client's connection, and its failures, are its own.
    ("grpc.use_local_subchannel_pool", 1),
    # Resuming is ours: a transparent second try would send a request twice.
    ("grpc.enable_retries", 0),
)


def open_channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    """A channel for threads, in plain text without credentials; it connects at the first call."""
    options = (*OPTIONS, *proxy_options(target))
    return grpc.secure_channel(target, credentials, options=options) if credentials else grpc.insecure_channel(target, options=options)


def open_async_channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel for the running event loop, in plain text without credentials; it connects at the first call."""
    options = (*OPTIONS, *proxy_options(target))
    if credentials:
        return grpc.aio.secure_channel(target, credentials, options=options)
    return grpc.aio.insecure_channel(target, options=options)
