"""Tells a control plane that this worker is there."""

import asyncio
import logging

import grpc
import grpc.aio

from pypto_serving.process.address import proxy_options
from pypto_serving.process.connection_problems import connection_problem, explained
from pypto_serving.process.credentials.tls import ReloadedTls, channel_credentials
from pypto_serving.process.trouble_log import TroubleLog
from pypto_serving.worker.v1 import worker_pb2 as pb
from pypto_serving.worker.v1 import worker_pb2_grpc
from worker.service.channel_options import CHANNEL_OPTIONS

_log = logging.getLogger(__name__)

_TLS_FLAGS = "--tls-cert, --tls-key, --tls-client-ca; on the control plane --worker-tls-ca, --worker-tls-cert, --worker-tls-key"
_CALL_SECONDS = 5.0

#: What a call says when nobody is there.
_NOBODY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

_MIN_WAIT_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 5.0


class Announcer:
    """Repeats an announcement before its lease runs out, for ever. Only changes are logged: heard, and not heard any more.

    Both ends show a certificate if the worker asks control planes for theirs; otherwise announcements are plain text.
    """

    def __init__(self, control_plane: str, address: str, incarnation: str, tls: ReloadedTls | None = None) -> None:
        self._control_plane = control_plane
        self._tls = tls
        self._request = pb.AnnounceRequest(address=address, incarnation=incarnation)
        self._is_heard = False
        self._troubles = TroubleLog(_log)
        self._backoff_seconds = _MIN_WAIT_SECONDS

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            async with self._open_channel() as channel:
                stub = worker_pb2_grpc.AnnounceServiceStub(channel)
                pause = await self._announce(stub)
                while self._is_heard:
                    await asyncio.sleep(pause)
                    pause = await self._announce(stub)
            await asyncio.sleep(pause)

    def _open_channel(self) -> grpc.aio.Channel:
        """A channel that shows and trusts what the certificate files say now."""
        contents = self._tls.current() if self._tls else None
        options = (*CHANNEL_OPTIONS, *proxy_options(self._control_plane))
        if contents is None or contents.ca is None:
            return grpc.aio.insecure_channel(self._control_plane, options=options)
        return grpc.aio.secure_channel(self._control_plane, channel_credentials(contents), options=options)

    async def _announce(self, stub: "worker_pb2_grpc.AnnounceServiceAsyncStub") -> float:
        """Announce once; returns the seconds to wait before the next time."""
        try:
            response = await stub.Announce(self._request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._is_heard = False
            is_missing = error.code() in _NOBODY and connection_problem(error.details() or "") is None
            reason = explained(error.code().name, error.details(), _TLS_FLAGS)
            self._troubles.note(f"announcements are not heard: {reason}", is_missing, control_plane=self._control_plane)
            self._backoff_seconds = min(2 * self._backoff_seconds, _MAX_BACKOFF_SECONDS)
            return self._backoff_seconds
        if not self._is_heard:
            _log.info("announced", extra={"control_plane": self._control_plane, "address": self._request.address})
        self._is_heard = True
        self._troubles.reached()
        self._backoff_seconds = _MIN_WAIT_SECONDS
        return max(response.lease_ms / 3000, _MIN_WAIT_SECONDS)
