"""A TCP proxy whose connections can be cut, held up, slowed down or lost."""

import asyncio
import contextlib


class TcpProxy:
    """Forwards bytes between its own port and an address.

    `cut` breaks every connection; `hold` stops all bytes without breaking anything, as a network that is down for a while does, and
    `let_go` ends that; `swallow` lets both ends of every connection believe in it while nothing arrives any more, as after an unplugged
    cable. `delay_seconds` is how long every piece of data takes.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        self._host, _, target_port = target.rpartition(":")
        self._target_port = int(target_port)
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._dead: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.delay_seconds = 0.0

    async def start(self) -> None:
        """Listen, at first on the given port or a free one, later on the same."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        """host:port to dial."""
        return f"127.0.0.1:{self._port}"

    def hold(self) -> None:
        """Let no more bytes through."""
        self._open.clear()

    def let_go(self) -> None:
        """Let bytes through again."""
        self._open.set()

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._dead.clear()

    def swallow(self) -> None:
        """Lose every connection without a sign; new ones work."""
        self._dead |= self._writers

    def refuse(self) -> None:
        """Accept no more connections until the next `start`, as when nobody listens at the target."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        """Break every connection and stop listening."""
        self.refuse()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(65536):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                await self._open.wait()
                if sink not in self._dead:
                    sink.write(chunk)
                    await sink.drain()
        if sink not in self._dead:
            sink.close()
            self._writers.discard(sink)
