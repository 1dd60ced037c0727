"""A probe says by its exit code whether a service is well, with and without TLS."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes.network.certificates import CertificateDirectory
from grpc_health.v1 import health_pb2_grpc

from pypto_serving.process.credentials.tls import server_credentials, watch_tls
from pypto_serving.process.health import HealthService
from pypto_serving.process.health_probe import main
from pypto_serving.process.listening import bind


class Served:
    """A health service on a port, over mutual TLS if there are certificates."""

    def __init__(self, certificates: CertificateDirectory | None) -> None:
        self.health = HealthService()
        self.health.set("", True)
        self.health.set("device", False)
        self._server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        credentials = server_credentials(watch_tls("tls", certificates.issue("server"))) if certificates else None
        self.address = f"127.0.0.1:{bind(self._server, '127.0.0.1', 0, credentials)}"

    async def __aenter__(self) -> "Served":
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)


async def probe(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


@pytest.fixture
async def plain() -> AsyncIterator[Served]:
    async with Served(None) as served:
        yield served


async def test_what_serves_is_well_and_what_does_not_says_so(plain: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert await probe(plain.address) == 0
    assert await probe(plain.address, "--service=device") == 1
    assert capsys.readouterr().err == f"{plain.address}: NOT_SERVING\n"


async def test_an_unknown_service_and_a_closed_port_are_one_line(plain: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert await probe(plain.address, "--service=moon") == 1
    assert await probe("127.0.0.1:1", "--seconds=5") == 1
    unknown, closed = capsys.readouterr().err.splitlines()
    assert "NOT_FOUND" in unknown and "UNAVAILABLE" in closed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tls-ca=/none",), "--tls-ca, --tls-cert, --tls-key: /none: no such file"),
        (("--tls-cert=/none", "--tls-key=/none"), "--tls-cert needs --tls-ca"),
        (("--tls-key=/none",), "--tls-key needs --tls-cert"),
    ],
)
async def test_wrong_files_are_bad_usage(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["127.0.0.1:1", *flags])
    assert end.value.code == 2 and capsys.readouterr().err.splitlines()[-1].endswith(message)


async def test_under_mutual_tls_it_shows_its_certificate(tmp_path: Path) -> None:
    certificates = CertificateDirectory(tmp_path)
    ours = certificates.issue("probe")
    flags = (f"--tls-ca={ours.ca}", "--tls-name=localhost")
    async with Served(certificates) as served:
        assert await probe(served.address, *flags, f"--tls-cert={ours.cert}", f"--tls-key={ours.key}") == 0
        assert await probe(served.address, *flags) == 1
