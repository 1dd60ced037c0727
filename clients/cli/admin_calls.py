"""Calls to the admin service at the first of the addresses."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clients.cli.connection_flags import credentials, targets

if TYPE_CHECKING:
    from pypto_serving.admin.v1.admin_pb2_grpc import AdminServiceStub

#: For what is answered at once.
SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class AdminCalls:
    """Its methods, and what every call has to show."""

    stub: "AdminServiceStub"
    metadata: tuple[tuple[str, str], ...]


@contextmanager
def admin_calls(arguments: argparse.Namespace) -> Iterator[AdminCalls]:
    """Open the connection; what fails within the block raises ServingError."""
    import grpc

    from clients.connection import open_channel
    from clients.errors import from_only_try
    from pypto_serving.admin.v1.admin_pb2_grpc import AdminServiceStub

    shown = credentials(arguments)
    with open_channel(targets(arguments)[0], shown.channel_credentials()) as channel:
        try:
            yield AdminCalls(AdminServiceStub(channel), shown.metadata())
        except grpc.RpcError as error:
            raise from_only_try(error) from None
