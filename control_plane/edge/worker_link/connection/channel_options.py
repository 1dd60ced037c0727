"""Options of the channel to a worker.

Dead peers are found by our own frames (see watchdog), not by HTTP/2 keepalive: a worker whose Python loop is blocked still answers pings.
"""

from pypto_serving.wire.contract import MAX_MESSAGE_BYTES

ChannelOptions = tuple[tuple[str, int], ...]

#: Every dial takes a fresh channel, so that gRPC's own backoff never delays it; the reconnect times only keep the first attempt short.
WORKER_CHANNEL: ChannelOptions = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
