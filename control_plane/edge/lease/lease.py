"""The lease of a scheduler process, kept on a thread of its own: stores may block."""

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Mapping

from control_plane.edge.config import LeaseOptions
from control_plane.edge.lease.file_store import FileLeaseStore
from control_plane.edge.lease.keeper import LeaseKeeper, LeaseStore
from control_plane.edge.lease.kubernetes_store import KubernetesLeaseStore, api_of_pod
from pypto_serving.process.start_up import StartUpError

_log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.05
_RELEASE_SECONDS = 1.0
#: Renewals in a lease, and looks at it of one who waits for it.
_NUM_RENEWALS, _NUM_LOOKS = 3, 20


def open_store(options: LeaseOptions, environment: Mapping[str, str]) -> LeaseStore:
    """Raises StartUpError when the lease can never be had."""
    if options.kubernetes:
        return KubernetesLeaseStore(api_of_pod(environment), *options.kubernetes, timeout_seconds=options.seconds / _NUM_RENEWALS)
    assert options.file is not None
    path = options.file.absolute()
    if not path.parent.is_dir():
        raise StartUpError(f"--lease-file {options.file}: {path.parent} is no directory")
    return FileLeaseStore(path, lock_seconds=options.seconds)


class Lease:
    """Started, held, and then either released or lost. Lives on an event loop."""

    def __init__(self, store: LeaseStore, seconds: float) -> None:
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._keeper = LeaseKeeper(store, name, seconds)
        self._seconds = seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to ask for it."""
        self._thread.start()

    @property
    def holder(self) -> str:
        """Who holds it, as far as we know."""
        return self._keeper.holder

    async def wait_until_held(self) -> None:
        """Return when it is ours."""
        while not self._keeper.is_held:
            await asyncio.sleep(_WATCH_SECONDS)

    async def wait_until_lost(self) -> None:
        """Return when it is not ours any more."""
        while not self._keeper.is_lost:
            await asyncio.sleep(_WATCH_SECONDS)
        _log.error("the lease is lost", extra={"holder": self.holder})

    async def release(self) -> None:
        """Give it back, if the store answers in time."""
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _RELEASE_SECONDS)

    def _run(self) -> None:
        while not self._keeper.is_lost:
            self._keeper.turn()
            if self._stopping.wait(self._seconds / (_NUM_RENEWALS if self._keeper.is_held else _NUM_LOOKS)):
                self._keeper.release()
                return
