"""TLS and keys of the client library, against servers that ask for them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer
from fakes.network.certificates import CertificateDirectory

from clients import AsyncClient, Client, Credentials, ServerUnreachable, ServingError
from control_plane.edge.access.keys import KeyInterceptor, watch_keys
from control_plane.edge.client_server import MAX_REQUEST_BYTES
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.credentials.tls import server_credentials, watch_tls


@pytest.fixture
def certificates(tmp_path: Path) -> CertificateDirectory:
    return CertificateDirectory(tmp_path)


@asynccontextmanager
async def secured(files: TlsFiles, *interceptors: KeyInterceptor) -> AsyncIterator[FakeServer]:
    async with FakeServer(FakeInferenceService(), server_credentials(watch_tls("test", files)), interceptors) as server:
        yield server


async def text_of(server: FakeServer, credentials: Credentials) -> str:
    async with AsyncClient(server.target, connect_seconds=0.0, credentials=credentials) as client:
        await client.models()
        return (await client.generate("hi", max_tokens=2)).text


async def test_mutual_tls_and_key_reach_a_server_that_asks_for_both(certificates: CertificateDirectory, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    files = certificates.issue("server")
    ours = certificates.issue("client")
    async with secured(files, KeyInterceptor(watch_keys("keys", tmp_path / "keys"), lambda method, code, context: ())) as server:
        shown = Credentials(tls_ca=ours.ca, tls_cert=ours.cert, tls_key=ours.key, api_key="sesame")
        assert await text_of(server, shown) == "100 101 "
        wrong = Credentials(tls_ca=ours.ca, tls_cert=ours.cert, tls_key=ours.key, api_key="tahini")
        with pytest.raises(ServingError, match="UNAUTHENTICATED: this server asks for a key"):
            await text_of(server, wrong)


async def test_the_client_for_threads_shows_the_same(certificates: CertificateDirectory, tmp_path: Path) -> None:
    import asyncio

    (tmp_path / "keys").write_text("sesame\n")
    files = certificates.issue("server")

    def models(target: str) -> int:
        with Client(target, credentials=Credentials(tls_ca=files.ca, api_key="sesame")) as client:
            return len(client.models()) + len(client.generate("hi", max_tokens=2).choices)

    interceptor = KeyInterceptor(watch_keys("keys", tmp_path / "keys"), lambda method, code, context: ())
    async with secured(TlsFiles(files.cert, files.key), interceptor) as server:
        assert await asyncio.to_thread(models, server.target) == 2


WRONG_WAYS: dict[str, tuple[Callable[[CertificateDirectory], TlsFiles], bool, str]] = {
    "plain text": (lambda here: here.issue("server"), False, "it hangs up: it may ask for TLS"),
    "no certificate": (lambda here: here.issue("server"), True, "or for a client's certificate"),
    "expired": (lambda here: here.issue("server", is_expired=True), True, "its certificate has expired"),
    "another host": (lambda here: here.issue("server", host="10.1.1.1"), True, "its certificate is for another host"),
    "unknown authority": (
        lambda here: CertificateDirectory(here.directory / "foreign").issue("server"),
        True,
        "its certificate comes from no authority that is trusted here",
    ),
}


@pytest.mark.parametrize("way", WRONG_WAYS)
async def test_a_connection_that_cannot_be_says_why(certificates: CertificateDirectory, way: str) -> None:
    issue, with_tls, message = WRONG_WAYS[way]
    files = issue(certificates)
    demanded = files if way == "no certificate" else TlsFiles(files.cert, files.key)
    async with secured(demanded) as server:
        credentials = Credentials(tls_ca=certificates.ca) if with_tls else Credentials()
        with pytest.raises(ServerUnreachable, match=message):
            await text_of(server, credentials)


async def test_tls_with_a_server_that_speaks_plain_text_says_so(server: FakeServer) -> None:
    with pytest.raises(ServerUnreachable, match="it speaks plain text: leave TLS off"):
        await text_of(server, Credentials(tls=True))


@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        (Credentials(tls_ca=Path("/nowhere/ca.pem")), "credentials: /nowhere/ca.pem: no such file"),
        (Credentials(tls_cert=Path("cert.pem")), r"credentials\.tls_cert and credentials\.tls_key are needed together"),
        (Credentials(api_key=""), r"credentials\.api_key: "),
        (Credentials(api_key="schlüssel"), r"credentials\.api_key: "),
        (Credentials(api_key="\ud800"), r"credentials\.api_key: "),
        (Credentials(api_key="two words"), r"credentials\.api_key: "),
    ],
)
def test_credentials_that_cannot_be_shown_are_refused_at_once(credentials: Credentials, message: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ServingError, match=message) as refused:
            kind("127.0.0.1:1", credentials=credentials)
        assert "schlüssel" not in str(refused.value)


def test_a_key_is_not_shown_by_accident() -> None:
    assert "sesame" not in repr(Credentials(api_key="sesame"))


async def test_rpc_02_a_request_above_the_limit_names_both_sizes_and_hurts_no_other(server: FakeServer) -> None:
    async with AsyncClient(server.target) as client:
        with pytest.raises(ServingError, match=rf"RESOURCE_EXHAUSTED: a message of [\d,]+ bytes, at most {MAX_REQUEST_BYTES:,} are taken"):
            await client.generate("x" * (MAX_REQUEST_BYTES + 1))
        assert (await client.generate("hi", max_tokens=1)).text == "100 "
