"""Many requests, so many at a time: what comes of each, in the order in which they end."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

import grpc

from clients.errors import ServingError, invalid
from clients.reconnection import timed_out
from clients.request import Request
from clients.results import Completion

DEFAULT_CONCURRENCY = 32

#: Before a full queue is tried again, at least.
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the request at `index`, counted from 0: a `completion`, or the `error` that ended it."""

    index: int
    request: Request
    completion: Completion | None = None
    error: ServingError | None = None


def check_concurrency(concurrency: int) -> None:
    """Raise ServingError (INVALID_ARGUMENT) for a number of requests that cannot be in flight."""
    if not (isinstance(concurrency, int) and concurrency > 0):
        raise invalid(f"concurrency: {concurrency!r} is not an integer from 1")


def pause_of_refusal(error: ServingError, request: Request, began_at: float) -> float:
    """How long to wait when the queue was full, or the key's quota used up, for a request first sent at `began_at` (time.monotonic()).

    Raises `error` when it is anything else, and DEADLINE_EXCEEDED when the request's timeout ends before that.
    """
    if error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED or error.retry_after_seconds is None:
        raise error
    pause = max(error.retry_after_seconds, _PAUSE_SECONDS)
    if request.timeout is not None and time.monotonic() + pause >= began_at + request.timeout:
        raise timed_out(request.timeout, f"last failure: {error.message}", error) from error
    return pause


async def answer_many(
    answer: Callable[[Request, float], Awaitable[Completion]], requests: Iterable[Request], concurrency: int
) -> AsyncGenerator[Outcome, None]:
    """Take from `requests` as others end; what is in flight is cancelled when the generator is closed.

    `answer` is told when the request was sent first (time.monotonic()): its timeout is for all tries together.
    """

    async def outcome(index: int, request: Request) -> Outcome:
        began_at = time.monotonic()
        while True:
            try:
                return Outcome(index, request, completion=await answer(request, began_at))
            except ServingError as error:
                try:
                    await asyncio.sleep(pause_of_refusal(error, request, began_at))
                except ServingError as final:
                    return Outcome(index, request, error=final)

    pending = enumerate(requests)
    running: set[asyncio.Task[Outcome]] = set()
    try:
        while True:
            for each in islice(pending, concurrency - len(running)):  # one by one: taking the next may raise
                running.add(asyncio.create_task(outcome(*each)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def answer_many_in_threads(
    answer: Callable[[Request], Completion], stop: Callable[[], object], requests: Iterable[Request], concurrency: int
) -> Generator[Outcome, None, None]:
    """The same with a thread for each request in flight; `stop` lets `answer` end soon when the generator is closed."""

    def outcome(index: int, request: Request) -> Outcome:
        try:
            return Outcome(index, request, completion=answer(request))
        except ServingError as error:
            return Outcome(index, request, error=error)

    pending = enumerate(requests)
    running: set[Future[Outcome]] = set()
    with ThreadPoolExecutor(concurrency, thread_name_prefix="request") as threads:
        try:
            while True:
                for each in islice(pending, concurrency - len(running)):
                    running.add(threads.submit(outcome, *each))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            stop()
