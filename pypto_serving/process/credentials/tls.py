"""TLS from PEM files that may be replaced while the process runs."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from pypto_serving.process.credentials.files import FileRefused, ReloadedFiles, TlsFiles


@dataclass(frozen=True, slots=True)
class TlsContents:
    """What these files say, as PEM. A server without `ca` asks for no certificate, a client without it trusts the public roots."""

    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ca: bytes | None = None


ReloadedTls = ReloadedFiles[TlsContents]


def watch_tls(name: str, files: TlsFiles) -> ReloadedTls:
    """Read the files and go on watching them; raises StartUpError when one is missing or broken, or key and certificate differ."""
    names = [slot for slot in ("cert", "key", "ca") if getattr(files, slot) is not None]

    def parse(contents: Sequence[bytes]) -> TlsContents:
        parsed = TlsContents(**dict(zip(names, contents, strict=True)))
        _check_pair(files)
        _check_ca(files.ca, parsed.ca)
        return parsed

    return ReloadedFiles(name, [getattr(files, slot) for slot in names], parse)


def server_credentials(tls: ReloadedTls) -> grpc.ServerCredentials:
    """Credentials of a server; every new connection gets the newest good files."""
    served = tls.current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake, on a thread of its own; None: as before."""
        nonlocal served
        newest = tls.current()
        if newest is served:
            return None
        served = newest
        return _configuration(newest)

    first, asks_for_certificates = _configuration(served), served.ca is not None
    return grpc.dynamic_ssl_server_credentials(first, fetch, asks_for_certificates)  # type: ignore[arg-type]  # None is allowed


def channel_credentials(contents: TlsContents) -> grpc.ChannelCredentials:
    """Credentials of a channel; they do not change any more."""
    return grpc.ssl_channel_credentials(contents.ca, contents.key, contents.cert)


def _configuration(contents: TlsContents) -> grpc.ServerCertificateConfiguration:
    assert contents.key is not None and contents.cert is not None, "a server needs a certificate"
    return grpc.ssl_server_certificate_configuration([(contents.key, contents.cert)], root_certificates=contents.ca)


def _check_pair(files: TlsFiles) -> None:
    if files.cert is None or files.key is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With a password the question for one does not come up on the terminal; gRPC takes no encrypted key.
        context.load_cert_chain(files.cert, files.key, password="")
    except ssl.SSLError as error:
        raise FileRefused(f"{files.cert} and {files.key} are no certificate and its unencrypted key: {error.reason or error}") from None
    except OSError as error:
        raise FileRefused(f"{files.cert} and {files.key}: {error.strerror}") from None


def _check_ca(path: Path | None, content: bytes | None) -> None:
    if content is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii", "ignore"))  # comments may be anything
    except (ssl.SSLError, ValueError):  # ValueError: it is empty
        raise FileRefused(f"{path}: holds no PEM certificates") from None
