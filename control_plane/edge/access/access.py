"""The certificates and keys of a control plane, read and watched."""

from dataclasses import dataclass

import grpc

from control_plane.edge.access.keys import ReloadedKeys, watch_keys
from control_plane.edge.access.options import AccessOptions
from control_plane.edge.worker_link.options import WorkerTls
from pypto_serving.process.credentials.metrics import CredentialCollector
from pypto_serving.process.credentials.tls import server_credentials, watch_tls


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How one server is protected; nothing is asked for where a field is None."""

    credentials: grpc.ServerCredentials | None = None
    keys: ReloadedKeys | None = None
    reflection: bool = True


class Access:
    """Reads every file at once, so that a broken one is known before anything starts."""

    def __init__(self, options: AccessOptions) -> None:
        """Raises StartUpError naming the file that is missing or broken."""
        self._reflection = options.reflection
        self._tls = watch_tls("tls", options.tls) if options.tls else None
        self._worker_tls = watch_tls("worker_tls", options.worker_tls) if options.worker_tls else None
        self._worker_tls_name = options.worker_tls_name
        self._api_keys = watch_keys("api_keys", options.api_keys_file) if options.api_keys_file else None
        self._admin_keys = watch_keys("admin_key", options.admin_key_file) if options.admin_key_file else None

    def for_clients(self) -> ServerAccess:
        """Of the clients' port."""
        return ServerAccess(server_credentials(self._tls) if self._tls else None, self._api_keys, self._reflection)

    def for_operators(self) -> ServerAccess:
        """Of the admin service."""
        return ServerAccess(server_credentials(self._tls) if self._tls else None, self._admin_keys, self._reflection)

    def for_announcements(self) -> grpc.ServerCredentials | None:
        """Of the port where workers announce themselves: both ends show what they show on the link."""
        has_own_certificate = self._worker_tls is not None and self._worker_tls.current().cert is not None
        return server_credentials(self._worker_tls) if self._worker_tls and has_own_certificate else None

    def to_workers(self) -> WorkerTls | None:
        """What workers are dialled with."""
        return WorkerTls(self._worker_tls, self._worker_tls_name) if self._worker_tls else None

    def metrics(self, prefix: str) -> CredentialCollector:
        """Counts of reloads."""
        watched = (self._tls, self._worker_tls, self._api_keys, self._admin_keys)
        return CredentialCollector(prefix, [files for files in watched if files is not None])
