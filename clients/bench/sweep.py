"""A series of load levels against one server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from clients.bench.arrivals import Arrivals, Trace
from clients.bench.generator import Generator
from clients.bench.goodput import Limits
from clients.bench.load import Load, Workload
from clients.bench.server_counts import TokenCounts, scrape
from clients.bench.summary import Summary, summarize
from clients.progress import progress_bar
from clients.request import Request
from clients.results import Model

_WARM_UP_TOKENS = 8
_SETTLE_SECONDS = 0.2
_SETTLE_TRIES = 10


@dataclass(frozen=True, slots=True)
class Level:
    """A load: `concurrency` streams, or with a `schedule` requests at its times."""

    num_requests: int
    num_warm_up: int
    max_seconds: float
    concurrency: int = 1
    schedule: Arrivals | Trace | None = None

    @property
    def name(self) -> str:
        return f"concurrency {self.concurrency}" if self.schedule is None else self.schedule.name

    @property
    def rate(self) -> float | None:
        """Requests per second that are to be sent; None for streams and traces."""
        return self.schedule.rate if isinstance(self.schedule, Arrivals) else None

    def load(self, requests: Sequence[Request]) -> Load:
        """`requests` as this level sends them."""
        times = None if self.schedule is None else self.schedule.times(len(requests))
        return Load(requests, self.max_seconds, self.concurrency, times)


@dataclass(frozen=True, slots=True)
class LevelOutcome:
    """A level's figures, what the server counted meanwhile if it was asked, and the level's rate if it had one."""

    summary: Summary
    counted: TokenCounts | None
    rate: float | None = None

    @property
    def is_good(self) -> bool:
        return not self.summary.num_failures and self.counted in (None, self.summary.received)


class Sweep:
    """Runs levels one after the other. Each begins with a warm-up that is in no figure; the server's counts are read around the rest."""

    def __init__(
        self, generator: Generator, model: Model, workload: Workload, metrics_url: str | None = None, limits: Limits | None = None
    ) -> None:
        self._generator = generator
        self._model = model
        self._workload = workload
        self._metrics_url = metrics_url
        self._limits = limits

    async def run(self, levels: Sequence[Level]) -> AsyncIterator[LevelOutcome]:
        """Yield the outcome of each level; raises CountsUnreadable when the server's counts cannot be read."""
        for level in levels:
            yield await self._run_level(level)

    async def _run_level(self, level: Level) -> LevelOutcome:
        requests = self._requests(level, f"{level.name} warm-up", level.num_warm_up)
        warm_up = [replace(request, max_tokens=min(request.max_tokens or 0, _WARM_UP_TOKENS)) for request in requests]
        await self._generator.put(Load(warm_up, level.max_seconds, max(level.concurrency, self._generator.num_connections)))
        before = await self._settled_counts()
        requests = self._requests(level, level.name, level.num_requests)
        with progress_bar(level.name, len(requests), "requests") as advance:
            timelines = await self._generator.put(level.load(requests), advance)
        after = await self._settled_counts()
        summary = summarize(level.name, timelines, self._limits, num_unsent=len(requests) - len(timelines))
        return LevelOutcome(summary, after - before if after is not None and before is not None else None, level.rate)

    def _requests(self, level: Level, name: str, count: int) -> list[Request]:
        if isinstance(level.schedule, Trace):
            return self._workload.requests_of(self._model, name, level.schedule.lengths[:count])
        return self._workload.requests(self._model, name, count)

    async def _settled_counts(self) -> TokenCounts | None:
        """The server's counts once they have come to rest; it may count a token a moment after it was received."""
        if self._metrics_url is None:
            return None
        counts = await scrape(self._metrics_url)
        for _ in range(_SETTLE_TRIES):
            await asyncio.sleep(_SETTLE_SECONDS)
            earlier, counts = counts, await scrape(self._metrics_url)
            if counts == earlier:
                break
        return counts
