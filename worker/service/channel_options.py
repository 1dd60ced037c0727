"""Options of the worker's gRPC server and of its channel to a control plane."""

from pypto_serving.process.listening import EXCLUSIVE_PORT
from pypto_serving.wire.contract import MAX_MESSAGE_BYTES

Options = tuple[tuple[str, int], ...]

_MESSAGE_SIZES: Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


def server_options(keepalive_ms: int = 30_000, min_ping_interval_ms: int = 5_000) -> Options:
    """Options of the server: after which silence it pings, and how often it may be pinged during one, with and without a call.

    Pings of ours only clear away dead connections: owners are watched by their lease. keepalive_timeout_ms alone took a minute to notice a
    frozen peer; ping_timeout_ms is what counts. Of the limits on the peer's pings the key without "recv" is the one that counts.
    """
    return (
        *_MESSAGE_SIZES,
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.ping_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        EXCLUSIVE_PORT,
    )


SERVER_OPTIONS: Options = server_options()

# gRPC's own backoff grows to two minutes, during which a control plane that is back would not be seen.
CHANNEL_OPTIONS: Options = (
    *_MESSAGE_SIZES,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
