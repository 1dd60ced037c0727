"""Replays resumes without holding an event loop up."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from control_plane.core.constraint import ConstraintViolated
from control_plane.edge.service.errors import InvalidArgument
from control_plane.engine.ports import GenerationRequest
from control_plane.engine.replay import Replay

#: Tokens between two looks at the clock.
_LOOK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """What the replay of one resume may cost."""

    cpu_seconds: float = 20.0
    slice_seconds: float = 0.01  # of CPU time; then it is the turn of another resume, and this one may have been cancelled


class Replayer:
    """Has threads of its own, on which resumes take turns. Used on the clients' event loop; `cpu_clock` is read on the threads."""

    def __init__(self, limits: ReplayLimits | None = None, num_threads: int = 2, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._limits = limits or ReplayLimits()
        self._cpu_clock = cpu_clock
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="replay")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def replay(self, request: GenerationRequest) -> GenerationRequest:
        """The request with its resumed tokens replayed; raises InvalidArgument. Whoever stops waiting stops it."""
        num_tokens = sum(len(choice.resumed_token_ids) for choice in request.choices)
        if not num_tokens:
            return request
        replay, seconds = Replay(request), 0.0
        try:
            while not replay.is_done:
                seconds += await asyncio.get_running_loop().run_in_executor(self._threads, self._run_slice, replay)
                if seconds > self._limits.cpu_seconds and not replay.is_done:
                    raise InvalidArgument(
                        f"resume.choices: {replay.num_pushed_tokens} of {num_tokens} tokens took {seconds:.1f} s of CPU time to go through "
                        f"text, stop strings and constraint again, limit {self._limits.cpu_seconds:g} s; start the request anew"
                    )
        except ConstraintViolated as error:
            raise InvalidArgument(str(error)) from None
        return replay.request

    def _run_slice(self, replay: Replay) -> float:
        """Returns the CPU time that it took, in seconds."""
        start = self._cpu_clock()
        seconds = 0.0
        while not replay.is_done and seconds < self._limits.slice_seconds:
            replay.advance(_LOOK_TOKENS)
            seconds = self._cpu_clock() - start
        return seconds
