"""Numbers that both sides of the worker protocol share."""

from control_plane.edge.worker_link.stream import WORKER_CHANNEL
from pypto_serving.wire.contract import MAX_MESSAGE_BYTES
from worker.service.channel_options import SERVER_OPTIONS


def test_rpc_02_both_sides_take_messages_of_the_same_size() -> None:
    for options in (dict(WORKER_CHANNEL), dict(SERVER_OPTIONS)):
        assert options["grpc.max_send_message_length"] == options["grpc.max_receive_message_length"] == MAX_MESSAGE_BYTES
