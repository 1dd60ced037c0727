"""The event loop does not fall behind gRPC's events."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Thread
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


class Events:
    """Stands for gRPC's reader: takes one byte, then looks for events."""

    def __init__(self, reader: socket.socket) -> None:
        self._reader = reader
        self.num_looks = 0

    def take_in(self) -> None:
        self._reader.recv(1)
        self.num_looks += 1


@pytest.mark.parametrize("num_bytes", [1, 2, 250])
def test_all_bytes_are_taken_out_before_one_look(pair: tuple[socket.socket, socket.socket], num_bytes: int) -> None:
    reader, writer = pair
    events = Events(reader)
    writer.send(b"1" * num_bytes)
    _read_all(reader, events.take_in)
    assert events.num_looks == 1
    with pytest.raises(BlockingIOError):
        reader.recv(1)


def test_a_byte_that_comes_after_the_look_is_left_for_the_next_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = pair
    events = Events(reader)

    def take_in_before_another_event() -> None:
        events.take_in()
        writer.send(b"1")

    writer.send(b"111")
    _read_all(reader, take_in_before_another_event)
    assert reader.recv(10) == b"1"


def test_bytes_that_another_loop_has_taken_out_are_not_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    reader, _ = pair
    events = Events(reader)
    _read_all(reader, events.take_in)
    assert events.num_looks == 0


class SharedReader(socket.socket):
    """Out of which two loops take bytes at the same time, as far as nothing keeps one of them waiting."""

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._both = Barrier(2, timeout=0.2)

    def recv(self, num_bytes: int, flags: int = 0) -> bytes:
        with suppress(BrokenBarrierError):
            self._both.wait()
        return super().recv(num_bytes, flags)


def test_two_loops_that_read_at_once_forget_no_event(pair: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = pair
    with SharedReader(reader.detach()) as shared:
        events = Events(shared)
        writer.send(b"11")
        loops = [Thread(target=_read_all, args=(shared, events.take_in)) for _ in range(2)]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()
        assert events.num_looks == 1


def test_other_readers_are_left_alone() -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(read_from_a_process()) == b"hello"


async def read_from_a_process() -> bytes:
    process = await asyncio.create_subprocess_exec("echo", "-n", "hello", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]
