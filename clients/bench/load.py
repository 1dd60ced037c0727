"""Load on a server: which requests, and when they are sent."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from clients.bench.timeline import Timeline
from clients.request import Request
from clients.results import Model

#: Sends one request and follows it to its end.
Send = Callable[[Request], Awaitable[Timeline]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of fixed lengths in tokens; the first `shared_prefix_tokens` of every prompt are the same."""

    prompt_tokens: int
    max_tokens: int
    shared_prefix_tokens: int = 0
    temperature: float = 0.0
    timeout: float | None = None
    seed: int = 0

    def requests(self, model: Model, level: str, count: int) -> list[Request]:
        """`count` requests with random prompts: no two share a page beyond the shared prefix. The same arguments give the same ones."""
        return self.requests_of(model, level, [(self.prompt_tokens, self.max_tokens)] * count)

    def requests_of(self, model: Model, level: str, lengths: Sequence[tuple[int, int]]) -> list[Request]:
        """The same with `lengths` of each prompt and answer; a prompt shorter than the shared prefix is a part of it."""
        # Whatever ends a text would be an odd thing to find in a prompt.
        vocabulary = sorted(set(range(model.vocab_size)) - set(model.end_token_ids))
        prefix = _draw(f"{self.seed} prefix", vocabulary, self.shared_prefix_tokens)
        requests = []
        for index, (prompt_tokens, max_tokens) in enumerate(lengths):
            own = _draw(f"{self.seed} {level} {index}", vocabulary, max(0, prompt_tokens - self.shared_prefix_tokens))
            requests.append(self._request(prefix[:prompt_tokens] + own, max_tokens, index))
        return requests

    def _request(self, token_ids: list[int], max_tokens: int, index: int) -> Request:
        return Request(
            token_ids=token_ids,
            max_tokens=max_tokens,
            ignore_eos=True,
            temperature=self.temperature,
            seed=self.seed + index,
            timeout=self.timeout,
        )


def _draw(seed: str, vocabulary: Sequence[int], count: int) -> list[int]:
    return random.Random(seed).choices(vocabulary, k=count)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that `concurrency` streams send one after the other, or that are sent at `times`, in seconds from the beginning.

    No request is sent after `max_seconds`.
    """

    requests: Sequence[Request]
    max_seconds: float
    concurrency: int = 1
    times: Sequence[float] | None = None

    def split(self, count: int) -> "list[Load]":
        """Equal parts of it for `count` processes, fewer where there are fewer streams or requests than that."""
        cycle = count if self.times is not None else self.concurrency
        owners = [index % cycle % count for index in range(len(self.requests))]
        return [self._part(owners, process, count) for process in range(min(cycle, count, len(self.requests)))]

    def _part(self, owners: Sequence[int], process: int, count: int) -> "Load":
        mine = [index for index, owner in enumerate(owners) if owner == process]
        times = None if self.times is None else [self.times[index] for index in mine]
        return Load([self.requests[index] for index in mine], self.max_seconds, len(range(process, self.concurrency, count)), times)


async def put(send: Send, load: Load, began: float) -> list[Timeline]:
    """Send `load` from this event loop, and follow all of it to its end; `began` is when its times begin, on the clock of timelines."""
    if load.times is None:
        return await closed_loop(send, load.requests, load.concurrency, load.max_seconds)
    return await open_loop(send, load.requests, [began + time for time in load.times], began + load.max_seconds)


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


async def open_loop(send: Send, requests: Sequence[Request], times: Sequence[float], last_start: float) -> list[Timeline]:
    """Send each request at its time, unless that is after `last_start`, however many are in flight; each timeline says how late it was."""
    timelines: list[Timeline] = []

    async def once(request: Request, due: float) -> None:
        timeline = await send(request)
        timeline.lateness_seconds = max(0.0, timeline.started_at - due)
        timelines.append(timeline)

    async with asyncio.TaskGroup() as group:
        for request, due in zip(requests, times, strict=True):
            if due > last_start:
                break
            await asyncio.sleep(due - time.perf_counter())
            group.create_task(once(request, due))
    return timelines
