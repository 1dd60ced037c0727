"""Puts load on a server, from one event loop: which requests, and when they are sent."""

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


async def open_loop(send: Send, requests: Sequence[Request], times: Sequence[float], max_seconds: float) -> list[Timeline]:
    """Send each request at its time, in seconds from now, however many are in flight; each timeline says how late that was."""
    timelines: list[Timeline] = []

    async def once(request: Request, due: float) -> None:
        timeline = await send(request)
        timeline.lateness_seconds = max(0.0, timeline.started_at - due)
        timelines.append(timeline)

    began = time.perf_counter()  # the clock of timelines
    async with asyncio.TaskGroup() as group:
        for request, arrival in zip(requests, times, strict=True):
            if arrival > max_seconds:
                break
            await asyncio.sleep(began + arrival - time.perf_counter())
            group.create_task(once(request, began + arrival))
    return timelines
