"""A fake worker, a registry that dials it, and the events it causes."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from fakes.worker.fake_worker import FakeWorker
from fakes.worker.recorded_events import RecordedEvents, RecordedLinkMetrics

from control_plane.edge.worker_link.options import Backoff, LinkOptions
from control_plane.edge.worker_link.registry import WorkerRegistry
from control_plane.edge.worker_link.session import LinkContext

StartWorker = Callable[..., Awaitable[FakeWorker]]
MakeRegistry = Callable[..., WorkerRegistry]


@pytest.fixture
async def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def metrics() -> RecordedLinkMetrics:
    return RecordedLinkMetrics()


@pytest.fixture
async def cleanup() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def start_worker(cleanup: AsyncExitStack) -> StartWorker:
    async def start(*arguments: object, **keywords: object) -> FakeWorker:
        worker = FakeWorker(*arguments, **keywords)
        await worker.start()
        cleanup.push_async_callback(worker.stop)
        return worker

    return start


@pytest.fixture
def make_registry(cleanup: AsyncExitStack, events: RecordedEvents, metrics: RecordedLinkMetrics) -> MakeRegistry:
    """Make a registry with short pauses; arguments: addresses, announce_lease_seconds, and those of LinkOptions."""

    def make(*addresses: str, announce_lease_seconds: float = 10.0, **options: object) -> WorkerRegistry:
        defaults = {"control_plane_id": "ours", "model_fingerprint": "model"}
        pauses = {"redial": Backoff(0.01, 0.05), "refused": Backoff(0.01, 0.05), "handshake_seconds": 0.5}
        link_options = LinkOptions(**{**defaults, **pauses, **options})
        registry = WorkerRegistry(link_options, LinkContext(events, metrics, time.monotonic), announce_lease_seconds)
        cleanup.push_async_callback(registry.stop)
        registry.start(addresses)
        return registry

    return make
