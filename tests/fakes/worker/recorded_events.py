"""What the worker links tell: recorded for tests to wait for."""

import asyncio
from dataclasses import dataclass, field

from control_plane.core.step import StepResult
from control_plane.engine.ports import Worker


@dataclass(frozen=True)
class Event:
    """A call of one method of WorkerEvents."""

    name: str
    worker: Worker
    detail: StepResult | int | str | None = None  # the result, the step id or the reason


def token_ids(result: StepResult) -> list[int]:
    """The tokens that a step sampled."""
    return list(result.tokens.values())


class RecordedEvents:
    """A WorkerEvents whose calls are awaited one by one, in order."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    @property
    def num_pending(self) -> int:
        """Calls that nobody has asked for yet."""
        return self._events.qsize()

    async def expect(self, name: str) -> Event:
        """Wait for the next call, which must be this one."""
        async with asyncio.timeout(20):
            event = await self._events.get()
        assert event.name == name, event
        return event

    def worker_joined(self, worker: Worker) -> None:
        """Record the call."""
        self._events.put_nowait(Event("worker_joined", worker))

    def step_done(self, worker: Worker, result: StepResult) -> None:
        """Record the call."""
        self._events.put_nowait(Event("step_done", worker, result))

    def digest_mismatch(self, worker: Worker, step_id: int) -> None:
        """Record the call."""
        self._events.put_nowait(Event("digest_mismatch", worker, step_id))

    def reset_done(self, worker: Worker) -> None:
        """Record the call."""
        self._events.put_nowait(Event("reset_done", worker))

    def worker_draining(self, worker: Worker) -> None:
        """Record the call."""
        self._events.put_nowait(Event("worker_draining", worker))

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """Record the call."""
        self._events.put_nowait(Event("worker_lost", worker, reason))


@dataclass
class RecordedLinkMetrics:
    """A LinkMetrics that counts."""

    epochs: dict[str, int] = field(default_factory=dict)  # of the workers in session
    step_bytes: list[int] = field(default_factory=list)
    longest_silence: float = 0.0
    num_resumed: int = 0
    num_mismatches: int = 0
    num_resets: int = 0
    forgotten: list[str] = field(default_factory=list)

    def worker_connected(self, address: str, epoch: int) -> None:
        """Record the call."""
        self.epochs[address] = epoch

    def worker_disconnected(self, address: str) -> None:
        """Record the call."""
        del self.epochs[address]

    def worker_forgotten(self, address: str) -> None:
        """Record the call."""
        self.forgotten.append(address)

    def worker_silence(self, address: str, seconds: float) -> None:
        """Record the call."""
        self.longest_silence = max(self.longest_silence, seconds)

    def step_sent(self, address: str, num_bytes: int) -> None:
        """Record the call."""
        self.step_bytes.append(num_bytes)

    def session_resumed(self, address: str) -> None:
        """Record the call."""
        self.num_resumed += 1

    def digest_mismatched(self, address: str) -> None:
        """Record the call."""
        self.num_mismatches += 1

    def worker_reset(self, address: str) -> None:
        """Record the call."""
        self.num_resets += 1
