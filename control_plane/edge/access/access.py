"""The certificates and keys of a control plane, read and watched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from control_plane.edge.access.keys import ReloadedKeys, watch_keys
from control_plane.edge.access.options import AccessOptions, PeerTls
from control_plane.edge.worker_link.options import WorkerTls
from pypto_serving.process.credentials.files import ReloadedFiles
from pypto_serving.process.credentials.tls import server_credentials, watch_tls
from pypto_serving.process.options import SERVER_TLS_FLAGS
from pypto_serving.process.start_up import given_by


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How one server is protected; nothing is asked for where a field is None."""

    credentials: grpc.ServerCredentials | None = None
    keys: ReloadedKeys | None = None
    reflection: bool = True


class Access:
    """What clients and operators must show. Reads every file at once, so that a broken one is known before anything starts."""

    def __init__(self, options: AccessOptions) -> None:
        """Raises StartUpError naming the file that is missing or broken."""
        self._reflection = options.reflection
        with given_by(*SERVER_TLS_FLAGS):
            self._tls = watch_tls("tls", options.tls) if options.tls else None
        with given_by("--api-keys-file"):
            self._api_keys = watch_keys("api_keys", options.api_keys_file) if options.api_keys_file else None
        with given_by("--admin-key-file"):
            self._admin_keys = watch_keys("admin_key", options.admin_key_file) if options.admin_key_file else None

    def for_clients(self) -> ServerAccess:
        """Of the clients' port."""
        return ServerAccess(server_credentials(self._tls) if self._tls else None, self._api_keys, self._reflection)

    def for_operators(self) -> ServerAccess:
        """Of the admin service."""
        return ServerAccess(server_credentials(self._tls) if self._tls else None, self._admin_keys, self._reflection)

    @property
    def watched(self) -> Sequence[ReloadedFiles[Any]]:
        """What counts its reloads."""
        return [files for files in (self._tls, self._api_keys, self._admin_keys) if files is not None]


class PeerAccess:
    """TLS between parts of the service, read as `Access` reads it; plain text without."""

    def __init__(self, name: str, tls: PeerTls | None) -> None:
        """`name` is for logs and metrics, and that of the flags. Raises StartUpError naming the file that is missing or broken."""
        with given_by(*(f"--{name.replace('_', '-')}-{kind}" for kind in ("ca", "cert", "key"))):
            self._tls = watch_tls(name, tls.files) if tls else None
        self._host = tls.name if tls else None

    def credentials(self) -> grpc.ServerCredentials | None:
        """Of a port where peers connect, under mutual TLS alone: both ends show what they show when they dial."""
        has_own_certificate = self._tls is not None and self._tls.current().cert is not None
        return server_credentials(self._tls) if self._tls and has_own_certificate else None

    def to_dial(self) -> WorkerTls | None:
        """What peers are dialled with."""
        return WorkerTls(self._tls, self._host) if self._tls else None

    @property
    def watched(self) -> Sequence[ReloadedFiles[Any]]:
        """What counts its reloads."""
        return [self._tls] if self._tls else []
