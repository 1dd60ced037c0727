"""Reads what a service tells of itself, over gRPC and HTTP."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from clients.connection import Credentials, open_async_channel
from clients.errors import ServingError, from_only_try
from clients.service_state.exposition import MetricsUnreadable, Sample, scrape
from clients.service_state.observer import Reading
from pypto_serving.admin.v1 import admin_pb2 as pb
from pypto_serving.admin.v1 import admin_pb2_grpc

_STATE_SECONDS = 3.0

_NO_CREDENTIALS = Credentials()


class ServiceReader:
    """Asks admin services and metrics ports, all at once; makes its connections on the event loop that it is made on.

    `credentials`: of the admin services, whose `api_key` is an admin key. `metrics_urls`: of all processes of the control planes.
    """

    def __init__(self, admin_targets: Sequence[str], metrics_urls: Sequence[str], credentials: Credentials = _NO_CREDENTIALS) -> None:
        self._metadata = credentials.metadata()
        secrets = credentials.channel_credentials()
        self._channels = {target: open_async_channel(target, secrets) for target in admin_targets}
        self._urls = tuple(metrics_urls)
        self._threads = ThreadPoolExecutor(max(1, len(self._urls)), thread_name_prefix="metrics")

    async def read(self) -> Reading:
        """One reading; it takes no longer than some seconds, whatever does not answer."""
        targets = list(self._channels)
        loop = asyncio.get_running_loop()
        states = (self._state(target) for target in targets)
        scrapes = (loop.run_in_executor(self._threads, _scrape, url) for url in self._urls)
        answers = dict(zip((*targets, *self._urls), await asyncio.gather(*states, *scrapes), strict=True))
        errors = {source: answer for source, answer in answers.items() if isinstance(answer, ServingError)}
        unreadable = {source: answer for source, answer in answers.items() if isinstance(answer, str)}
        return Reading(
            states={source: answer for source, answer in answers.items() if isinstance(answer, pb.GetStateResponse)},
            metrics={source: answer for source, answer in answers.items() if isinstance(answer, list)},
            failures={target: str(error) for target, error in errors.items()} | unreadable,
            errors=errors,
        )

    async def _state(self, target: str) -> pb.GetStateResponse | ServingError:
        stub = admin_pb2_grpc.AdminServiceStub(self._channels[target])
        try:
            return await stub.GetState(pb.GetStateRequest(), timeout=_STATE_SECONDS, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return from_only_try(error)

    async def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for channel in self._channels.values():
            await channel.close(None)


def _scrape(url: str) -> list[Sample] | str:
    try:
        return scrape(url)
    except MetricsUnreadable as error:
        return str(error)
