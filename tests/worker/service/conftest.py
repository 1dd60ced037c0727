from collections.abc import AsyncIterator

import pytest_asyncio
from harness.worker_rig import Rig, serve_rig


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serve_rig() as served:
        yield served
