"""A served scheduler, and front ends that speak to it frame by frame."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from harness.served_scheduler import RawFrontEnd, ServedScheduler

StartScheduler = Callable[..., Awaitable[ServedScheduler]]
Dial = Callable[[ServedScheduler], RawFrontEnd]


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A directory with a short name: that of a socket may have some hundred characters."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
async def cleanup() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def start_scheduler(cleanup: AsyncExitStack, socket_directory: Path) -> StartScheduler:
    """Factory: start one; arguments of `start`, and options."""

    async def start(stands_by: bool = False, **options: Any) -> ServedScheduler:
        scheduler = ServedScheduler(socket_directory / "scheduler", **options)
        await scheduler.start(stands_by)
        cleanup.push_async_callback(scheduler.kill)
        return scheduler

    return start


@pytest.fixture
def dial(cleanup: AsyncExitStack) -> Dial:
    """Factory: a front end that has dialled a scheduler."""

    def dial(scheduler: ServedScheduler) -> RawFrontEnd:
        front_end = RawFrontEnd(scheduler.address)
        cleanup.push_async_callback(front_end.close)
        return front_end

    return dial
