"""The endpoint for Prometheus and for probes of a process, on a port and threads of its own."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from socketserver import BaseServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector

from pypto_serving.process.address import join_address
from pypto_serving.process.descriptors import DescriptorWatch
from pypto_serving.process.probes import Probes
from pypto_serving.process.start_up import StartUpError

_SCRAPER_SECONDS = 30.0
_MAX_CONNECTIONS = 16
_RETRY_SECONDS = 0.1

_App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _ScrapeServer(ThreadingMixIn, WSGIServer):
    """A thread per connection, up to _MAX_CONNECTIONS: one more ends the oldest, which is no scraper, as those are done in a moment."""

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: Any, handler: type[WSGIRequestHandler]) -> None:
        self.address_family = family
        self._connections: list[socket.socket] = []  # oldest first
        self._lock = threading.Lock()
        self._descriptors = DescriptorWatch()
        super().__init__(address, handler)

    def service_actions(self) -> None:
        """Called twice a second, and after each connection."""
        self._descriptors.check()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Without a descriptor for it, it would be tried again and again on a whole core."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_RETRY_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a connection."""
        with self._lock:
            self._connections.append(request)
            if len(self._connections) > _MAX_CONNECTIONS:
                with suppress(OSError):  # the other end was faster
                    # Wakes the thread that waits for the other end, which then closes the connection.
                    self._connections.pop(0).shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._lock:
            if request in self._connections:
                self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that breaks its connection off, or falls silent, is no news; Python would print a traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            BaseServer.handle_error(self, request, client_address)


def register_process(registry: CollectorRegistry) -> None:
    """Show what Prometheus' clients tell of every process: its CPU time, memory and descriptors, and its Python."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)


class MetricsEndpoint:
    """Serves a registry at /metrics, and probes, until closed."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(
    registry: Collector, host: str, port: int, probes: Probes | None = None, scraper_seconds: float = _SCRAPER_SECONDS
) -> MetricsEndpoint:
    """Serve `registry` and `probes` on host:port (0: any free port); raises StartUpError with one line when that fails.

    A client that neither sends nor takes anything for `scraper_seconds` is let go.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series
    handler = type("_Scrape", (WSGIRequestHandler,), {"timeout": scraper_seconds, "log_message": lambda *_: None})
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = _ScrapeServer(family, address, handler)
    except OSError as error:
        raise StartUpError(f"cannot serve metrics on {join_address(host, port)}: {error.strerror}", exit_code=1) from None
    server.set_app(_app(prometheus_client.make_wsgi_app(registry), probes))
    return MetricsEndpoint(server)


def _app(metrics: _App, probes: Probes | None) -> _App:
    """Answers by path: /metrics, and the names that Kubernetes has for what its probes ask."""
    troubles: dict[str, Callable[[], str]] = {}
    if probes:
        troubles = {"/startupz": probes.startup_trouble, "/livez": probes.liveness_trouble, "/readyz": probes.readiness_trouble}

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            # As plain text whatever a scraper would rather have: of the names in OpenMetrics prometheus_client makes vllm_ where vllm: is
            # meant.
            return metrics(environ | {"HTTP_ACCEPT": ""}, start_response)
        if path in troubles:
            trouble = troubles[path]()
            status, line = (HTTPStatus.SERVICE_UNAVAILABLE, " ".join(trouble.split())) if trouble else (HTTPStatus.OK, "ok")
        else:
            status, line = HTTPStatus.NOT_FOUND, f"this port serves {', '.join(['/metrics', *troubles])}"
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{line}\n".encode()]

    return answer
