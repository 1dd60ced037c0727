"""Puts load on a server, from one event loop."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from clients.bench.timeline import Timeline
from clients.request import Request

#: Sends one request and follows it to its end.
Send = Callable[[Request], Awaitable[Timeline]]


async def closed_loop(send: Send, requests: Sequence[Request], concurrency: int, max_seconds: float) -> list[Timeline]:
    """Keep `concurrency` requests in flight until all are sent or `max_seconds` are over; what is in flight then is followed to its end."""
    pending = iter(requests)
    last_start = time.monotonic() + max_seconds
    timelines: list[Timeline] = []

    async def one_after_the_other() -> None:
        for request in pending:
            timelines.append(await send(request))
            if time.monotonic() >= last_start:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(one_after_the_other())
    return timelines


async def open_loop(send: Send, requests: Sequence[Request], rate: float, max_seconds: float, seed: int) -> list[Timeline]:
    """Send `rate` requests per second at random times (a Poisson process), however many are in flight."""
    timelines: list[Timeline] = []

    async def once(request: Request) -> None:
        timelines.append(await send(request))

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for request, arrival in zip(requests, arrivals(rate, len(requests), seed), strict=True):
            if arrival > max_seconds:
                break
            await asyncio.sleep(began + arrival - time.monotonic())
            group.create_task(once(request))
    return timelines


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Times of `count` arrivals, in seconds from the beginning."""
    generator = random.Random(seed)
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + generator.expovariate(rate))
    return times[:count]
