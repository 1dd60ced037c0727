"""TLS from files, over real connections of gRPC."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from fakes.network.certificates import CertificateDirectory
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.credentials.tls import TlsContents, channel_credentials, server_credentials, watch_tls
from pypto_serving.process.listening import bind
from pypto_serving.process.start_up import StartUpError


@pytest.fixture
def certificates(tmp_path: Path) -> CertificateDirectory:
    return CertificateDirectory(tmp_path)


@asynccontextmanager
async def served(files: TlsFiles) -> AsyncIterator[int]:
    """A server; gives its port."""
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = bind(server, "127.0.0.1", 0, server_credentials(watch_tls("test", files)))
    await server.start()
    yield port
    await server.stop(None)


async def call(port: int, contents: TlsContents) -> str:
    """What became of a call over a connection of its own."""
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", channel_credentials(contents)) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "OK"


def presented(port: int) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", port))


async def test_ops_04_new_connections_get_the_new_certificate_and_an_old_stream_goes_on(certificates: CertificateDirectory) -> None:
    files = certificates.issue("server")
    trust = TlsContents(ca=certificates.ca.read_bytes())
    async with (
        served(TlsFiles(files.cert, files.key)) as port,
        grpc.aio.secure_channel(f"127.0.0.1:{port}", channel_credentials(trust)) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        first = presented(port)
        certificates.issue("server")
        second = presented(port)
        assert (first != second, second == presented(port)) == (True, True)
        assert await call(port, trust) == "OK"
        assert not watch.done()
        watch.cancel()


def break_certificate(files: TlsFiles, certificates: CertificateDirectory) -> None:
    files.cert.write_text("-----BEGIN CERTIFICATE-----\n")


def delete_both(files: TlsFiles, certificates: CertificateDirectory) -> None:
    files.cert.unlink()
    files.key.unlink()


def mismatch(files: TlsFiles, certificates: CertificateDirectory) -> None:
    files.key.write_bytes(certificates.issue("other").key.read_bytes())


@pytest.mark.parametrize("spoil", [break_certificate, delete_both, mismatch])
async def test_ops_04_while_files_are_bad_the_last_good_pair_stays(
    certificates: CertificateDirectory,
    spoil: Callable[[TlsFiles, CertificateDirectory], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = certificates.issue("server")
    async with served(TlsFiles(files.cert, files.key)) as port:
        good = presented(port)
        spoil(files, certificates)
        assert [presented(port), presented(port)] == [good, good]
        ours = [record.message for record in caplog.records if record.name != "asyncio"]  # where gRPC's reader is heard of at times
        assert ours == ["credentials not reloaded, the last good ones stay"]
        certificates.issue("server")
        assert presented(port) != good


async def test_mutual_tls_lets_in_who_shows_a_certificate_of_the_authority(certificates: CertificateDirectory, tmp_path: Path) -> None:
    trust = certificates.ca.read_bytes()
    ours, foreign = certificates.issue("client"), CertificateDirectory(tmp_path / "foreign").issue("client")
    async with served(certificates.issue("server")) as port:
        assert await call(port, TlsContents(ours.cert.read_bytes(), ours.key.read_bytes(), trust)) == "OK"
        assert (await call(port, TlsContents(foreign.cert.read_bytes(), foreign.key.read_bytes(), trust))).startswith("UNAVAILABLE")
        assert (await call(port, TlsContents(ca=trust))).startswith("UNAVAILABLE")


@pytest.mark.parametrize("spoil", [break_certificate, delete_both, mismatch])
def test_a_start_with_bad_files_is_one_line(
    certificates: CertificateDirectory, spoil: Callable[[TlsFiles, CertificateDirectory], None]
) -> None:
    files = certificates.issue("server")
    spoil(files, certificates)
    with pytest.raises(StartUpError, match=r"server\.(pem|key)") as refused:
        watch_tls("test", files)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["", "nonsense", "-----BEGIN CERTIFICATE-----\n"])
def test_a_ca_file_without_certificates_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(StartUpError, match=r"ca\.pem: holds no PEM certificates"):
        watch_tls("test", TlsFiles(ca=tmp_path / "ca.pem"))


def test_a_ca_file_may_hold_comments_in_any_language(certificates: CertificateDirectory) -> None:
    certificates.ca.write_bytes("# Főtanúsítvány\n".encode() + certificates.ca.read_bytes())
    assert watch_tls("test", TlsFiles(ca=certificates.ca)).current().ca == certificates.ca.read_bytes()


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(TlsContents(key=b"secret"))
