"""Who sends the load: this process, or several that do it together."""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection as Pipe
from typing import Protocol

from clients.async_client import AsyncClient
from clients.bench.load import Load, put
from clients.bench.timeline import Timeline, follow
from clients.connection import Credentials
from clients.progress import Advance, no_advance
from clients.request import Request

_LEAD_SECONDS = 0.1  # for all processes to have their part before its first request is due


@dataclass(frozen=True, slots=True)
class Connections:
    """How servers are reached: `count` connections, over which requests go in turn."""

    targets: Sequence[str]
    credentials: Credentials
    count: int = 1

    def open_client(self) -> AsyncClient:
        """A client with one of them. It tries nothing again: that would be measured twice and reported as if nothing had happened."""
        return AsyncClient(self.targets, connect_seconds=0.0, resume_seconds=0.0, credentials=self.credentials)


class Generator(Protocol):
    """Puts load on a server."""

    @property
    def num_connections(self) -> int:
        """Over which it sends."""

    async def put(self, load: Load, advance: Advance = no_advance) -> list[Timeline]:
        """Send `load` and follow it to its end, telling `advance` what has ended; raises ChildProcessError when that cannot be."""


@asynccontextmanager
async def open_generator(connections: Connections, num_processes: int) -> AsyncIterator[Generator]:
    """The generator of `num_processes` processes, each with such `connections`; of one it is this process."""
    if num_processes == 1:
        async with OwnGenerator(connections) as own:
            yield own
        return
    processes = LoadProcesses(connections, num_processes)
    try:
        yield processes
    finally:
        processes.close()


class OwnGenerator:
    """Sends from the running event loop. Use it as an async context manager."""

    def __init__(self, connections: Connections) -> None:
        self._stack = AsyncExitStack()
        self._clients = [connections.open_client() for _ in range(connections.count)]
        self._next_client = cycle(self._clients).__next__

    async def __aenter__(self) -> "OwnGenerator":
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def num_connections(self) -> int:
        return len(self._clients)

    async def put(self, load: Load, advance: Advance = no_advance) -> list[Timeline]:
        return await self.put_at(load, time.perf_counter(), advance)

    async def put_at(self, load: Load, began: float, advance: Advance = no_advance) -> list[Timeline]:
        """The same, for times that count from `began`."""

        async def send(request: Request) -> Timeline:
            timeline = await self._send(request)
            advance()
            return timeline

        return await put(send, load, began)

    async def _send(self, request: Request) -> Timeline:
        assert request.max_tokens is not None
        return await follow(self._next_client().send(request), request.max_tokens)


class LoadProcesses:
    """Processes that each send a part of a load. Their timelines are put together, so that figures are those of all samples.

    Times of processes compare, as their clock is the machine's.
    """

    def __init__(self, connections: Connections, count: int) -> None:
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        self.num_connections = connections.count * count
        self._pipes: list[Pipe] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(theirs, connections), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(ours)
            self._processes.append(process)

    async def put(self, load: Load, advance: Advance = no_advance) -> list[Timeline]:
        timelines = await asyncio.to_thread(self._put, load)
        advance(len(timelines))  # of processes it is known at their end only
        return timelines

    def _put(self, load: Load) -> list[Timeline]:
        parts = load.split(len(self._pipes))
        began = time.perf_counter() + _LEAD_SECONDS
        try:
            for pipe, part in zip(self._pipes, parts, strict=False):  # who has no part waits for the next load
                pipe.send((part, began))
            return [timeline for pipe, _ in zip(self._pipes, parts, strict=False) for timeline in pipe.recv()]
        except (EOFError, OSError):
            raise ChildProcessError("one of the --processes ended; what it said is above") from None

    def close(self) -> None:
        """End them, whatever they do."""
        for process in self._processes:
            process.kill()
            process.join()


def _run(pipe: Pipe, connections: Connections) -> None:
    """Life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all, and the first one ends the others
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(pipe, connections))


async def _serve(pipe: Pipe, connections: Connections) -> None:
    """Put load until the pipe ends, which it also does when nobody is left to take the timelines."""
    async with OwnGenerator(connections) as generator:
        following = asyncio.create_task(asyncio.to_thread(_receive, pipe))
        while (received := await following) is not None:
            following = asyncio.create_task(asyncio.to_thread(_receive, pipe))
            putting = asyncio.create_task(generator.put_at(*received))
            await asyncio.wait({putting, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                putting.cancel()
                return
            pipe.send(putting.result())


def _receive(pipe: Pipe) -> tuple[Load, float] | None:
    try:
        received: tuple[Load, float] = pipe.recv()
    except EOFError:
        return None
    return received


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return factory
