"""Who answers at an address."""

import socket

import pytest

from control_plane.edge.worker_link.connection.port_probe import Answer, probe_port


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_a_listener_is_open(listener):
    assert await probe_port(f"127.0.0.1:{listener.getsockname()[1]}", 5) is Answer.OPEN


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nobody_is_a_refusal_whatever_the_name_stands_for(listener, host):
    port = listener.getsockname()[1]
    listener.close()
    assert await probe_port(f"{host}:{port}", 5) is Answer.REFUSED


async def test_a_name_that_means_nothing_is_unreachable():
    assert await probe_port("worker..local:1", 5) is Answer.UNREACHABLE


async def test_no_time_is_silence():
    assert await probe_port("127.0.0.1:1", 0) is Answer.SILENT
