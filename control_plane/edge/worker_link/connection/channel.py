"""The channel to a worker."""

from dataclasses import dataclass

import grpc
import grpc.aio

from control_plane.edge.worker_link.connection.channel_options import WORKER_CHANNEL
from pypto_serving.process.address import proxy_options
from pypto_serving.process.credentials.tls import ReloadedTls, channel_credentials


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """Certificates for the links to workers. `name`: the host that theirs must name; None: the one dialled."""

    files: ReloadedTls
    name: str | None = None


def open_channel(address: str, tls: WorkerTls | None) -> grpc.aio.Channel:
    """A channel that shows and trusts what the files say now."""
    options = (*WORKER_CHANNEL, *proxy_options(address))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    name = (("grpc.ssl_target_name_override", tls.name),) if tls.name else ()
    return grpc.aio.secure_channel(address, channel_credentials(tls.files.current()), options=(*options, *name))
