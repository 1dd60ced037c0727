"""The Prometheus endpoint of a process, on a port and thread of its own."""

import sys
import threading
from functools import partial
from socketserver import BaseServer
from typing import Any
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client.registry import Collector

from pypto_serving.process.start_up import StartUpError

_SCRAPER_SECONDS = 30.0


class MetricsEndpoint:
    """Serves a registry at /metrics until closed."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(registry: Collector, host: str, port: int, scraper_seconds: float = _SCRAPER_SECONDS) -> MetricsEndpoint:
    """Serve `registry` on host:port (0: any free port); raises StartUpError with one line when that fails.

    A client that neither sends nor takes anything for `scraper_seconds` is let go.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series
    try:
        server, thread = prometheus_client.start_http_server(port, host, registry)
    except OSError as error:
        raise StartUpError(f"can not serve metrics on {host}:{port}: {error.strerror}", exit_code=1) from None
    handler: Any = server.RequestHandlerClass
    # Every connection has a thread, which would wait for ever.
    server.RequestHandlerClass = type("_Scrape", (handler,), {"timeout": scraper_seconds})
    server.handle_error = partial(_handle_error, server)  # type: ignore[method-assign]
    return MetricsEndpoint(server, thread)


def _handle_error(server: BaseServer, request: Any, client_address: Any) -> None:
    """A scraper that breaks its connection off, or falls silent, is no news; Python would print a traceback."""
    if not isinstance(sys.exception(), ConnectionError | TimeoutError):
        BaseServer.handle_error(server, request, client_address)
