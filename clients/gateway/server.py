"""The process: listens, serves until a signal, lets running answers end."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace

import uvicorn

from clients.connection import Credentials
from clients.gateway.app import build_app
from clients.gateway.config import GatewayConfig, Upstream
from clients.gateway.control_planes import ControlPlaneOptions, ControlPlanes
from clients.gateway.envelope import Envelope
from clients.gateway.live_state import LiveState
from clients.gateway.metrics import GatewayMetrics
from clients.gateway.service import Gateway
from pypto_serving.process.address import join_address
from pypto_serving.process.credentials.files import FileRefused, TlsFiles, read_key
from pypto_serving.process.credentials.tls import watch_tls
from pypto_serving.process.options import SERVER_TLS_FLAGS
from pypto_serving.process.start_up import StartUpError, given_by
from pypto_serving.process.stop_requests import StopRequests

_log = logging.getLogger(__name__)

_BACKLOG = 4096
#: Longer than the minute for which proxies and clients keep idle connections: who closes first loses no request.
_KEEP_ALIVE_SECONDS = 75
#: For the errors that answers end with at the end, and then for routes to notice that their clients are gone.
_LAST_WRITES_SECONDS = 1.0


class _Server(uvicorn.Server):
    """Leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatewayServer:
    """A gateway on a port, in the running event loop; raises StartUpError when it cannot listen."""

    def __init__(self, config: GatewayConfig, stop: StopRequests) -> None:
        self._config = config
        self._stop = stop
        self._socket = _listen(config.host, config.port)
        self.port: int = self._socket.getsockname()[1]
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Serve until asked to stop; running answers get --drain-seconds to end, or no time after a second signal."""
        gateway = _gateway(self._config)
        server = _Server(_uvicorn_config(gateway, self._config))
        stopping = asyncio.create_task(self._end(server, gateway))
        await gateway.planes.start()
        gateway.live_state.start()
        try:
            address = join_address(self._config.host, self.port)
            scheme = "https" if self._config.tls else "http"
            _log.info("serving", extra={"address": address, "page": f"{scheme}://{address}/"})
            self.started.set()
            await server.serve([self._socket])
        finally:
            stopping.cancel()
            await gateway.live_state.close()
            await gateway.planes.close()
            self._socket.close()
            _log.info("stopped")

    async def _end(self, server: uvicorn.Server, gateway: Gateway) -> None:
        """Drain, then let every answer that still runs end with an error, and drop whoever does not take it.

        uvicorn, which is done as soon as nothing runs, would cancel answers instead: a 500, or a stream that just breaks.
        """
        await self._stop.drain.wait()
        seconds, metrics = self._config.drain_seconds, gateway.metrics
        _log.info("draining", extra={"requests": metrics.num_live, "drain_seconds": seconds})
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.at_once.wait(), seconds)
        if metrics.num_live:
            _log.warning("requests cut off", extra={"requests": metrics.num_live})
        await gateway.planes.close()
        await asyncio.sleep(_LAST_WRITES_SECONDS)
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(_LAST_WRITES_SECONDS)
        server.force_exit = True


async def run_gateway(config: GatewayConfig) -> int:
    """Run a gateway until a signal; returns the exit code."""
    stop = StopRequests()
    stop.listen()
    await GatewayServer(config, stop).run()
    return 0


def _gateway(config: GatewayConfig) -> Gateway:
    planes = ControlPlanes(_options(config))
    return Gateway(planes, GatewayMetrics(), _live_state(config, planes), config.is_strict, config.max_body_bytes)


def _live_state(config: GatewayConfig, planes: ControlPlanes) -> LiveState:
    sources = config.live_state
    try:
        key = read_key(sources.admin_key_file) if sources.admin_key_file else None
    except FileRefused as error:
        raise StartUpError(f"--admin-key-file: {error}") from None
    credentials = replace(_credentials(config.upstream), api_key=key)
    return LiveState(sources.admin_targets, sources.metrics_urls, credentials, planes.models)


def _options(config: GatewayConfig) -> ControlPlaneOptions:
    upstream = config.upstream
    return ControlPlaneOptions(
        targets=upstream.targets,
        connect_seconds=upstream.connect_seconds,
        resume_seconds=upstream.resume_seconds,
        credentials=_credentials(upstream),
        tool_parser="" if config.tool_parser == "auto" else config.tool_parser,
        parses_reasoning=config.reasoning_parser == "auto",
    )


def _credentials(upstream: Upstream) -> Credentials:
    """Raises StartUpError for files that are wrong."""
    with given_by("--upstream-tls-ca", "--upstream-tls-cert", "--upstream-tls-key"):
        watch_tls("upstream_tls", TlsFiles(upstream.tls_cert, upstream.tls_key, upstream.tls_ca))
    return Credentials(upstream.tls, upstream.tls_ca, upstream.tls_cert, upstream.tls_key)


def _uvicorn_config(gateway: Gateway, config: GatewayConfig) -> uvicorn.Config:
    tls = config.tls or TlsFiles()
    with given_by(*SERVER_TLS_FLAGS):
        watch_tls("tls", tls)  # says what is wrong with the files, which uvicorn's traceback would not
    return uvicorn.Config(
        Envelope(build_app(gateway), gateway),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        ssl_certfile=tls.cert,
        ssl_keyfile=tls.key,
        ssl_ca_certs=tls.ca,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls.ca else ssl.CERT_NONE,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartUpError(f"cannot listen on {join_address(host, port)}: {_reason(error)}", exit_code=1) from None


def _reason(error: OSError) -> str:
    """Without the address, which Python adds to some."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
