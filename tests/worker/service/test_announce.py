import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from fakes.control_plane.hand_control_plane import FakeAnnounceService, announce_server

from worker.service.announce import Announcer


@asynccontextmanager
async def announcing(port: int) -> AsyncIterator[None]:
    task = asyncio.create_task(Announcer(f"127.0.0.1:{port}", "127.0.0.1:50061", "worker-1").run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_announcement_is_repeated_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    service = FakeAnnounceService()
    async with announce_server(service) as port, announcing(port), asyncio.timeout(30):
        announcements = [await service.announcements.get() for _ in range(3)]
    assert {(request.address, request.incarnation) for request in announcements} == {("127.0.0.1:50061", "worker-1")}
    assert [record.message for record in caplog.records if record.name == "worker.service.announce"] == ["announced"]


async def test_control_plane_that_comes_back_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with announce_server(FakeAnnounceService()) as port:
        pass
    again = FakeAnnounceService()
    async with announcing(port), asyncio.timeout(60):
        while not caplog.records:
            await asyncio.sleep(0.01)
        async with announce_server(again, port):
            await again.announcements.get()
            while "announced" not in caplog.messages:
                await asyncio.sleep(0.01)
    first, second = [record for record in caplog.records if record.name == "worker.service.announce"]
    assert first.levelname == "INFO" and first.message.startswith("not there yet: announcements are not heard: UNAVAILABLE: ")
    assert second.message == "announced"
