"""A front end's link and its calls, and schedulers that it dials."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from harness.linked_front_end import LinkedFrontEnd
from harness.served_scheduler import ServedScheduler

MakeScheduler = Callable[..., ServedScheduler]
StartFrontEnd = Callable[..., LinkedFrontEnd]


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
def make_scheduler(cleanup: AsyncExitStack, socket_directory: Path) -> MakeScheduler:
    """Factory: a scheduler with a name, not started yet; options of its sessions."""

    def make(name: str = "scheduler", **options: Any) -> ServedScheduler:
        scheduler = ServedScheduler(socket_directory / name, **options)
        cleanup.push_async_callback(scheduler.kill)
        return scheduler

    return make


@pytest.fixture
async def start_front_end(cleanup: AsyncExitStack) -> StartFrontEnd:
    """Factory: a link to some schedulers with short pauses; options of the link."""

    def start(*schedulers: ServedScheduler, **options: Any) -> LinkedFrontEnd:
        front_end = LinkedFrontEnd([scheduler.address for scheduler in schedulers], **options)
        cleanup.push_async_callback(front_end.close)
        return front_end

    return start


@pytest.fixture
async def scheduler(make_scheduler: MakeScheduler) -> ServedScheduler:
    """One that serves."""
    scheduler = make_scheduler()
    await scheduler.start()
    return scheduler


@pytest.fixture
async def front_end(start_front_end: StartFrontEnd, scheduler: ServedScheduler) -> LinkedFrontEnd:
    """One that dials it."""
    return start_front_end(scheduler)
