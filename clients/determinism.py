"""One request under several circumstances, and whether its answer was the same to the last bit."""

import asyncio
import hashlib
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Self

from clients.async_client import AsyncClient
from clients.request import Request
from clients.results import Delta, Event, TokenLogprob
from clients.stream_state import StreamState

NUM_ALTERNATIVES = 5
_LOW_PRIORITY = 100
_TEXT = (
    "The lighthouse keeper wrote down everything that he saw: the ships, the weather, the birds that came in autumn, and the hour at which "
    "the lamp was lit. On the last day of the year he opened the book at its first page and began to read aloud. "
)


@dataclass(frozen=True, slots=True)
class Recording:
    """What was received of an answer."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    numerics_id: str
    cached_tokens: int
    num_readmissions: int

    @property
    def token_hash(self) -> str:
        """Of the token ids."""
        return _hash(struct.pack(f"<{len(self.token_ids)}I", *self.token_ids))

    @property
    def logprob_hash(self) -> str:
        """Of every bit of the log probabilities, with the alternatives at each place."""
        return _hash(b"".join(_bits(entry) for entry in self.logprobs))

    def difference_from(self, other: "Recording") -> str:
        """In words, where it differs first; empty where it does not."""
        for place, (token_id, before) in enumerate(zip(self.token_ids, other.token_ids, strict=False)):
            if token_id != before:
                return f"token {place} is {token_id}, was {before}"
        if len(self.token_ids) != len(other.token_ids):
            return f"{len(self.token_ids)} tokens, were {len(other.token_ids)}"
        for place, (ours, theirs) in enumerate(zip(self.logprobs, other.logprobs, strict=False)):
            if _bits(ours) != _bits(theirs):
                return f"log probabilities of token {place}: {ours.logprob!r}, was {theirs.logprob!r}, or its alternatives"
        return "" if len(self.logprobs) == len(other.logprobs) else f"{len(self.logprobs)} log probabilities, were {len(other.logprobs)}"


def _bits(entry: TokenLogprob) -> bytes:
    pairs = [(entry.token_id, entry.logprob or 0.0), *((top.token_id, top.logprob) for top in entry.top)]
    return b"".join(struct.pack("<Id", *pair) for pair in pairs)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


#: What is asked: `greedy` takes the most likely token always, `seeded` draws.
REQUESTS = {
    "greedy": Request(_TEXT, temperature=0.0, ignore_eos=True, logprobs=True, top_logprobs=NUM_ALTERNATIVES),
    "seeded": Request(_TEXT, temperature=0.9, top_p=0.95, seed=20, ignore_eos=True, logprobs=True, top_logprobs=NUM_ALTERNATIVES),
}


def other_requests(count: int, max_tokens: int) -> list[Request]:
    """Requests of other people: parts of the text, of several lengths, drawn or not. The same every time."""
    words = _TEXT.split()
    requests = []
    for number in range(count):
        draw = random.Random(number)
        first = draw.randrange(len(words))
        prompt = " ".join((words * 3)[first : first + draw.randint(3, 2 * len(words))])
        length = draw.randint(max_tokens // 2 + 1, max_tokens)
        requests.append(Request(prompt, max_tokens=length, ignore_eos=True, temperature=float(number % 2), seed=number))
    return requests


async def record(client: AsyncClient, request: Request) -> Recording:
    """Take the whole answer."""
    state = StreamState(request)
    await _follow(client, state, request)
    return _recording(state)


async def record_resumed(client: AsyncClient, request: Request, after: int) -> Recording:
    """Take `after` tokens, end the stream, and take the rest from one that resumes it: what was computed before is computed anew."""
    state = StreamState(request)
    async with aclosing(client.follow(state, request.timeout)) as events:
        await _take(events, state, after)
    await _follow(client, state, request)
    return _recording(state)


async def record_meanwhile(
    client: AsyncClient, request: Request, after: int, begin: Callable[[StreamState], Awaitable[object]]
) -> Recording:
    """Take `after` tokens, `begin` something, and take the rest of the same stream, whatever comes of it."""
    state = StreamState(request)
    async with aclosing(client.follow(state, request.timeout)) as events:
        await _take(events, state, after)
        await begin(state)
        async for _ in events:
            pass
    return _recording(state)


async def record_among(client: AsyncClient, request: Request, others: Sequence[Request]) -> tuple[Recording, int]:
    """Take the answer beside `others`, which run already; also says how many of them got tokens while it ran."""
    async with Crowd(client, others) as crowd:
        await crowd.send()
        await crowd.has_begun()
        crowd.forget()
        recording = await record(client, request)
        num_beside = crowd.num_running
        await crowd.ends()
    return recording, num_beside


async def record_preempted(client: AsyncClient, request: Request, num_others: int) -> Recording:
    """Take the answer with others of higher priority coming after its first tokens; the recording says whether they preempted it."""
    low = replace(request, priority=_LOW_PRIORITY)
    async with Crowd(client, other_requests(num_others, 2 * (request.max_tokens or 1))) as crowd:
        recording = await record_meanwhile(client, low, after=2, begin=crowd.send)
        await crowd.ends()
    return recording


class Crowd:
    """Other requests, sent together, and cancelled when the context is left."""

    def __init__(self, client: AsyncClient, requests: Sequence[Request]) -> None:
        self._client = client
        self._requests = requests
        self._running: set[int] = set()
        self._first = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def num_running(self) -> int:
        """How many got tokens since `forget`."""
        return len(self._running)

    def forget(self) -> None:
        """Count from now on."""
        self._running.clear()

    async def send(self, *_: object) -> None:
        """Send them all, and do not wait for them."""
        self._tasks = [asyncio.create_task(self._follow(number, request)) for number, request in enumerate(self._requests)]

    async def has_begun(self) -> None:
        """Wait for the first token of any of them; raises ServingError when one of them failed."""
        first = asyncio.create_task(self._first.wait())
        await asyncio.wait({first, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    async def ends(self) -> None:
        """Wait for all of them; raises ServingError when one failed."""
        await asyncio.gather(*self._tasks)

    async def _follow(self, number: int, request: Request) -> None:
        async with aclosing(self._client.send(request)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    self._running.add(number)
                    self._first.set()


async def _follow(client: AsyncClient, state: StreamState, request: Request) -> None:
    async with aclosing(client.follow(state, request.timeout)) as events:
        async for _ in events:
            pass


async def _take(events: AsyncIterator[Event], state: StreamState, count: int) -> None:
    async for _ in events:
        if (state.num_tokens or 0) >= count:
            return


def _recording(state: StreamState) -> Recording:
    choice = state.completion().choices[0]
    return Recording(choice.token_ids, choice.logprobs, state.numerics_id, choice.usage.cached_tokens, choice.timing.num_readmissions)
