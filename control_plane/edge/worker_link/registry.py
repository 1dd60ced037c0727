"""All workers of a control plane: those it was told of and those that announced themselves."""

import asyncio
import logging
from collections.abc import Iterable

import grpc
import grpc.aio

from control_plane.edge.worker_link.frames.welcome import num_pages_of
from control_plane.edge.worker_link.link import LinkState, WorkerLink
from control_plane.edge.worker_link.options import LinkOptions
from control_plane.edge.worker_link.session import LinkContext
from control_plane.edge.worker_link.stream import LinkBroken
from pypto_serving.process.address import split_address
from pypto_serving.wire.contract import MAX_NAME_LENGTH
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc

_log = logging.getLogger(__name__)

#: Announcements are taken from anybody who reaches the port.
_MAX_ANNOUNCED = 1024
#: Books of some 64 bytes are kept on every page: a GiB at most.
_MAX_PAGES_IN_ALL = 2**24


class TooManyWorkers(Exception):
    """No more announcements are taken; the message names the limit."""


class WorkerRegistry:
    """Owns the links. Everything is called on the engine's event loop."""

    def __init__(self, options: LinkOptions, context: LinkContext, announce_lease_seconds: float = 10.0) -> None:
        self._options = options
        self._context = context
        self._announce_lease_seconds = announce_lease_seconds
        self._links: dict[str, WorkerLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._forget_timers: dict[str, asyncio.TimerHandle] = {}  # of announced workers

    @property
    def announce_lease_seconds(self) -> float:
        """How long an announcement counts."""
        return self._announce_lease_seconds

    def start(self, addresses: Iterable[str]) -> None:
        """Dial these workers, for good; raises ValueError for what is not host:port."""
        for address in dict.fromkeys(addresses):
            split_address(address)
            self._add(address)

    async def stop(self) -> None:
        """End all sessions; the engine is not told."""
        for timer in self._forget_timers.values():
            timer.cancel()
        self._forget_timers.clear()
        await asyncio.gather(*(link.leave() for link in self._links.values()))
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._links.clear()

    def announce(self, address: str, incarnation: str) -> None:
        """Record an announcement; raises ValueError for what is not host:port and TooManyWorkers."""
        split_address(address)
        if address not in self._links:
            if len(self._forget_timers) >= _MAX_ANNOUNCED:
                raise TooManyWorkers(f"{_MAX_ANNOUNCED} workers have announced themselves, which is the limit")
            _log.info("worker announced", extra={"worker": address, "incarnation": incarnation})
            self._add(address, incarnation)
            self._forget_later(address)
        elif address in self._forget_timers:
            self._forget_timers[address].cancel()
            self._forget_later(address)
        self._links[address].announced(incarnation)

    def states(self) -> list[LinkState]:
        """Snapshot of every link."""
        return [link.state() for link in self._links.values()]

    def _add(self, address: str, incarnation: str = "") -> None:
        link = WorkerLink(address, self._options, self._context, self)
        link.incarnation = incarnation
        self._links[address] = link
        self._tasks[address] = asyncio.get_running_loop().create_task(self._supervise(link), name=f"worker link {address}")

    async def _supervise(self, link: WorkerLink) -> None:
        """Run a link until it has left. Whatever a worker makes of it, the others and the next dial must not suffer."""
        while True:
            try:
                return await link.run()
            except Exception as error:
                _log.exception("the link failed", extra={"worker": link.address})
                link.lose(f"internal error: {error}")
                await asyncio.sleep(self._options.refused.max_seconds)

    def address_in_session(self, incarnation: str) -> str | None:
        for link in self._links.values():
            if link.session and link.session.description.incarnation == incarnation:
                return link.address
        return None

    def check_pages(self, address: str, num_pages: int) -> None:
        others = [link.session.description for link in self._links.values() if link.session and link.address != address]
        total = num_pages + sum(map(num_pages_of, others))
        if total > _MAX_PAGES_IN_ALL:
            raise LinkBroken(f"the workers would have {total} pages in all, limit {_MAX_PAGES_IN_ALL}", is_refusal=True)

    def check_weights(self, address: str, digest: str) -> None:
        for other in self._links.values():
            if other.session and other.address != address and other.weights_digest not in ("", digest):
                digests = f"weights_digest is {digest[:MAX_NAME_LENGTH]!r}, that of {other.address} in session is {other.weights_digest!r}"
                advice = "the files of one of them are damaged; compare what sha256sum says of them"
                raise LinkBroken(f"{digests}: {advice}", is_refusal=True)

    def _forget_later(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._forget_timers[address] = loop.call_later(self._announce_lease_seconds, self._forget, address)

    def _forget(self, address: str) -> None:
        if self._links[address].session:
            self._forget_later(address)
            return
        _log.info("worker forgotten", extra={"worker": address})
        self._tasks.pop(address).cancel()
        del self._links[address], self._forget_timers[address]
        self._context.metrics.worker_forgotten(address)


class AnnounceServicer(worker_pb2_grpc.AnnounceServiceServicer):
    """Hands announcements to the registry, on whose event loop it is to be served."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry

    async def Announce(
        self,
        request: worker_pb2.AnnounceRequest,
        context: grpc.aio.ServicerContext[worker_pb2.AnnounceRequest, worker_pb2.AnnounceResponse],
    ) -> worker_pb2.AnnounceResponse:
        """Record an announcement. INVALID_ARGUMENT: not an address; RESOURCE_EXHAUSTED: too many workers."""
        try:
            self._registry.announce(request.address, request.incarnation)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"address: {error}")
        except TooManyWorkers as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return worker_pb2.AnnounceResponse(lease_ms=round(self._registry.announce_lease_seconds * 1000))
