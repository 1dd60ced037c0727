"""Clients: the Python client library, the command line and the load generator.

    from clients import Client

    with Client("127.0.0.1:50051") as client:
        print(client.generate("The capital of France is", max_tokens=8).text)

Names are resolved on first use, so that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients.async_client import AsyncClient
    from clients.client import Client
    from clients.connection import Credentials
    from clients.conversation import Message, Tool, ToolCall
    from clients.errors import ResumeExhausted, ServerUnreachable, ServingError
    from clients.many import Outcome
    from clients.request import Request

__all__ = [
    "AsyncClient",
    "Client",
    "Credentials",
    "Message",
    "Outcome",
    "Request",
    "ResumeExhausted",
    "ServerUnreachable",
    "ServingError",
    "Tool",
    "ToolCall",
]

_MODULES = {
    "AsyncClient": "async_client",
    "Client": "client",
    "Credentials": "connection",
    "Message": "conversation",
    "Outcome": "many",
    "Request": "request",
    "ResumeExhausted": "errors",
    "ServerUnreachable": "errors",
    "ServingError": "errors",
    "Tool": "conversation",
    "ToolCall": "conversation",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
