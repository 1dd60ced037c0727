"""Numbers that both ends of the sessions between front ends and the scheduler hold to; see protos/pypto_serving/scheduler/v1."""

#: The versions of the protocol that this build speaks, oldest and newest.
MIN_PROTOCOL_VERSION, PROTOCOL_VERSION = 1, 1

HEARTBEAT_SECONDS = 0.25
MAX_SILENCE_SECONDS = 5.0

#: Nothing bounds a message between our own processes: the longest prompt, or its log probabilities, is one.
MESSAGE_SIZES: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)


def common_version(oldest: int, newest: int) -> int:
    """The newest version that we and a peer, who speaks `oldest` to `newest`, both speak, or 0."""
    version = min(newest, PROTOCOL_VERSION)
    return version if version >= max(oldest or newest, MIN_PROTOCOL_VERSION) else 0
