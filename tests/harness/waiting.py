"""Waits in tests: for what comes by itself, never for a time."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` holds; TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)
