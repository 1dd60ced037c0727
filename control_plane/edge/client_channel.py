"""Options of the servers that clients reach."""

from pypto_serving.process.listening import EXCLUSIVE_PORT

#: Enough for a prompt of a million tokens, as ids or as text. Larger messages are refused by gRPC, before they are parsed.
MAX_REQUEST_BYTES = 16 * 1024 * 1024

#: Calls that have arrived and are not begun.
MAX_PENDING_CALLS = 100_000

SERVER_OPTIONS = (
    EXCLUSIVE_PORT,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    # gRPC drops calls that nobody has looked at, with a CANCELLED of its own, from 1,000 on by chance: a burst is ours to refuse.
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    ("grpc.server_max_unrequested_time_in_server", 300),  # seconds
    # Clients may ping through a long prefill, and between calls. The key with "recv" in its name does nothing.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    # A client that vanished without a word is noticed, and its requests are aborted.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)
