"""Everything is replaced, one process after the other, under streams; docs/deploy.md says how. No stream may notice."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.checkpoints import TinyCheckpoint
from harness.processes import ServingProcess, fixed_ports, front_end, scheduler, worker
from harness.waiting import until

from clients import AsyncClient
from clients.results import Delta

pytestmark = pytest.mark.slow

_REQUESTS: list[dict[str, Any]] = [
    {"prompt": f"Story {number}", "max_tokens": 400, "temperature": number % 2 * 0.9, "seed": number, "ignore_eos": True}
    for number in range(8)
]


class Cell:
    """Two of everything, at fixed addresses, as pods behind names are: what ends is started again where it was."""

    def __init__(self, model: Path, lease: Path) -> None:
        ports = [str(port) for port in fixed_ports(6)]
        self._model, self._lease = model, lease
        self._schedulers, self._front_ends, self._workers = ports[:2], ports[2:4], ports[4:]
        self._running: dict[str, ServingProcess] = {}

    @property
    def targets(self) -> list[str]:
        """Where clients go."""
        return [f"127.0.0.1:{port}" for port in self._front_ends]

    @contextmanager
    def running(self) -> Iterator["Cell"]:
        """All processes, as long as the block runs."""
        try:
            for port in (*self._workers, *self._schedulers, *self._front_ends):
                self._start(port)
            for port in self._front_ends:
                self._running[port].wait_until_ready()
            yield self
        finally:
            with ExitStack() as ends:
                for process in self._running.values():
                    ends.push(process)

    async def replace_everything(self) -> None:
        """SIGTERM to each in turn, the next one as soon as its successor serves or stands by."""
        for port in (*self._schedulers, *self._front_ends, *self._workers):
            old = self._running[port]
            old.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(old.wait) == 0
            old.__exit__(None, None, None)
            self._start(port)
            await self._comes_up(port)

    async def _comes_up(self, port: str) -> None:
        new = self._running[port]
        if port in self._schedulers:
            await until(lambda: any(event["message"] in ("standing by", "serving") for event in new.events))
        else:
            await asyncio.to_thread(new.wait_until_ready)

    def _start(self, port: str) -> None:
        self._running[port] = self._process(port)

    def _process(self, port: str) -> ServingProcess:
        if port in self._workers:
            return worker(self._model, "--port", port)
        if port in self._front_ends:
            return front_end(self._model, [f"127.0.0.1:{each}" for each in self._schedulers], "--port", port)
        dialled = [flag for each in self._workers for flag in ("--worker", f"127.0.0.1:{each}")]
        return scheduler(self._model, [], "--frontend-port", port, "--lease-file", str(self._lease), *dialled)


class Streams:
    """Streams that begin again and again until they are told to end; each is compared with an undisturbed one."""

    def __init__(self, client: AsyncClient, undisturbed: list[tuple[int, ...]]) -> None:
        self._client = client
        self._undisturbed = undisturbed
        self._is_ending = False
        self.num_done = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All at once, as long as the block runs and to the end of those that have begun."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(len(_REQUESTS)):
                tasks.create_task(self._repeat(number))
            yield
            self._is_ending = True

    async def _repeat(self, number: int) -> None:
        while not self._is_ending:
            received = [
                token async for event in self._client.stream(**_REQUESTS[number]) if isinstance(event, Delta) for token in event.token_ids
            ]
            assert tuple(received) == self._undisturbed[number]
            self.num_done += 1


async def test_a_rolling_update_of_everything_costs_no_stream_and_no_token(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    with Cell(tiny_checkpoint("qwen3", "bfloat16"), tmp_path / "lease").running() as cell:
        async with AsyncClient(cell.targets) as client:
            undisturbed = [(await client.generate(**request)).token_ids for request in _REQUESTS]
            streams = Streams(client, undisturbed)
            async with streams.running():
                await cell.replace_everything()
    assert streams.num_done >= len(_REQUESTS)
