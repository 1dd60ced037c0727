"""Options of the worker's gRPC server and of its channel to a control plane."""

from pypto_serving.process.listening import EXCLUSIVE_PORT
from pypto_serving.wire.contract import MAX_MESSAGE_BYTES

Options = tuple[tuple[str, int], ...]

_MESSAGE_SIZES: Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

# They only clear away dead connections: owners are watched by their lease. keepalive_timeout_ms alone took a minute to notice a frozen
# peer; ping_timeout_ms is what counts.
_KEEPALIVE: Options = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)

# The key without "recv" is the one that counts: a peer may ping often during a long silence without being sent away.
_PINGS_ALLOWED: Options = (("grpc.http2.min_ping_interval_without_data_ms", 5_000),)

SERVER_OPTIONS: Options = (*_MESSAGE_SIZES, *_KEEPALIVE, *_PINGS_ALLOWED, EXCLUSIVE_PORT)

# gRPC's own backoff grows to two minutes, during which a control plane that is back would not be seen.
CHANNEL_OPTIONS: Options = (
    *_MESSAGE_SIZES,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
