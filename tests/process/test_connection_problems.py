"""What gRPC says of connections that do not come about, in plain words."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from fakes.network.certificates import CertificateDirectory

from pypto_serving.process.connection_problems import connection_problem, explained
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.credentials.tls import channel_credentials, server_credentials, watch_tls


@contextmanager
def serving(files: TlsFiles | None) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    if files:
        port = server.add_secure_port("localhost:0", server_credentials(watch_tls("tls", files)))
    else:
        port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(None).wait()


def details(address: str, files: TlsFiles | None, name: str = "localhost") -> str:
    """What a call says."""
    options = [("grpc.ssl_target_name_override", name)]
    secret = channel_credentials(watch_tls("tls", files).current()) if files else None
    dialled = grpc.secure_channel(address, secret, options) if secret else grpc.insecure_channel(address)
    with dialled as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/a.B/C")(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(caught.value.details())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> CertificateDirectory:
    return CertificateDirectory(tmp_path_factory.mktemp("ours"))


def test_plain_text_and_tls_that_meet(ours: CertificateDirectory) -> None:
    pair = ours.issue("server")
    with serving(None) as plain, serving(TlsFiles(pair.cert, pair.key)) as secret:
        assert connection_problem(details(plain, TlsFiles(ca=ours.ca))) == "it speaks plain text: leave TLS off"
        assert "may ask for TLS" in str(connection_problem(details(secret, None)))


def test_certificates_that_do_not_fit(ours: CertificateDirectory, tmp_path: Path) -> None:
    pair, strangers = ours.issue("server"), CertificateDirectory(tmp_path)
    with serving(TlsFiles(pair.cert, pair.key)) as address, serving(pair) as mutual:
        assert "no authority that is trusted here" in str(connection_problem(details(address, TlsFiles(ca=strangers.ca))))
        assert connection_problem(details(address, TlsFiles(ca=ours.ca), "elsewhere")) == "its certificate is for another host"
        assert "a client's certificate" in str(connection_problem(details(mutual, TlsFiles(ca=ours.ca))))


def test_what_speaks_for_itself_stays() -> None:
    assert explained("UNAVAILABLE", "the worker drains", "--tls-ca") == "UNAVAILABLE: the worker drains"
    assert explained("CANCELLED", None) == "CANCELLED"
    said = explained("UNAVAILABLE", "... WRONG_VERSION_NUMBER ...", "--tls-ca")
    assert said == "UNAVAILABLE: cannot be talked to: it speaks plain text: leave TLS off (flags: --tls-ca)"


def test_who_was_reached_before_hangs_up_for_other_reasons():
    details = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Socket closed"
    assert "may ask for TLS" in str(connection_problem(details))
    assert connection_problem(details, was_reached=True) is None
