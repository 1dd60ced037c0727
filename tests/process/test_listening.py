import socket
from pathlib import Path

import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from pypto_serving.process.listening import EXCLUSIVE_PORT, bind, bind_socket, check_port
from pypto_serving.process.metrics_endpoint import serve_metrics
from pypto_serving.process.start_up import StartUpError


async def test_a_taken_port_is_one_clear_line() -> None:
    first, second = grpc.aio.server(options=[EXCLUSIVE_PORT]), grpc.aio.server(options=[EXCLUSIVE_PORT])
    port = bind(first, "127.0.0.1", 0)
    with pytest.raises(StartUpError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
        bind(second, "127.0.0.1", port)
    await first.stop(None)
    await second.stop(None)


async def test_a_host_that_nobody_knows_is_no_taken_port() -> None:
    with pytest.raises(StartUpError) as caught:
        bind(grpc.aio.server(), "nowhere.invalid", 0)
    assert str(caught.value).startswith("cannot listen on nowhere.invalid:0: ") and "taken" not in str(caught.value)


async def test_a_socket_that_a_process_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = grpc.aio.server()
    bind_socket(server, path)
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await channel.channel_ready()
    await server.stop(None)
    with pytest.raises(StartUpError, match=f"cannot listen on {tmp_path}/nowhere/socket: its directory is missing"):
        bind_socket(grpc.aio.server(), tmp_path / "nowhere" / "socket")


async def test_a_socket_on_which_somebody_listens_stays_theirs(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = grpc.aio.server()
    bind_socket(server, path)
    await server.start()
    with pytest.raises(StartUpError, match=f"cannot listen on {path}: another process does") as refusal:
        bind_socket(grpc.aio.server(), path)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await channel.channel_ready()
    await server.stop(None)
    assert refusal.value.exit_code == 1 and not path.exists()


def test_a_taken_port_is_known_beforehand() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, pytest.raises(StartUpError, match="cannot listen on") as refusal:
        check_port("127.0.0.1", holder.getsockname()[1])
    assert refusal.value.exit_code == 1 and "\n" not in str(refusal.value)


def test_an_address_of_ipv6_is_named_in_brackets() -> None:
    with pytest.raises(StartUpError, match=r"cannot listen on \[2001:db8::1\]:50051: "):
        check_port("2001:db8::1", 50051)
    with pytest.raises(StartUpError, match=r"cannot serve metrics on \[2001:db8::1\]:9400: "):
        serve_metrics(CollectorRegistry(), "2001:db8::1", 9400)
