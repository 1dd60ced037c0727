"""The event loop does not fall behind gRPC's events."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc.aio
import pytest
import uvloop

from control_plane.edge.event_loop import EventLoop, _read_all


class NotedReaders(uvloop.Loop):
    """Notes what is called when there is something to read."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks: list[Any] = []

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self.callbacks.append(callback)
        super().add_reader(fd, callback, *args)


class NotedLoop(EventLoop, NotedReaders):
    """An event loop of ours on one that notes."""


async def make_server() -> None:
    await grpc.aio.server().stop(None)


def test_grpcs_reader_is_found() -> None:
    with asyncio.Runner(loop_factory=NotedLoop) as runner:
        runner.run(make_server())
        loop = runner.get_loop()
        assert isinstance(loop, NotedLoop)
        assert [getattr(callback, "func", None) for callback in loop.callbacks] == [_read_all]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    with reader, writer:
        yield reader, writer


@pytest.mark.parametrize("num_bytes", [1, 2, 250])
def test_all_bytes_are_taken_out_but_one(pair: tuple[socket.socket, socket.socket], num_bytes: int) -> None:
    reader, writer = pair
    writer.send(b"1" * num_bytes)
    _read_all(reader, partial(reader.recv, 1))
    left = 1 if num_bytes > 1 else 0
    assert len(reader.recv(1000) if left else b"") == left


def test_an_event_that_comes_while_others_are_taken_in_is_not_forgotten(pair: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = pair
    writer.send(b"1")

    def take_in() -> None:
        reader.recv(1)
        writer.send(b"1")

    _read_all(reader, take_in)
    assert reader.recv(10) == b"1"


def test_other_readers_are_left_alone() -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(read_from_a_process()) == b"hello"


async def read_from_a_process() -> bytes:
    process = await asyncio.create_subprocess_exec("echo", "-n", "hello", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]
