"""What a client shows to a server, and what it wants to see."""

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from clients.errors import invalid
from pypto_serving.process.credentials.key_file import HEADER_BYTES
from pypto_serving.process.credentials.tls import channel_credentials, watch_tls
from pypto_serving.process.credentials.tls_files import TlsFiles
from pypto_serving.process.start_up import StartUpError


@dataclass(frozen=True, slots=True)
class Credentials:
    """Any field but `api_key` turns TLS on. Files are PEM, and read when the client is made; wrong ones raise ServingError there.

    `tls_ca`: the authority that servers' certificates must come from, without it the public ones; `tls_cert` and `tls_key`: the
    certificate of the client, for servers that ask for one; `api_key`: the key that the server knows.
    """

    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    api_key: str | None = field(default=None, repr=False)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """For a channel; None: plain text."""
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise invalid("credentials.tls_cert and credentials.tls_key are needed together")
        files = TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)
        if not self.tls and files == TlsFiles():
            return None
        try:
            return channel_credentials(watch_tls("tls", files).current())
        except StartUpError as error:
            raise invalid(f"credentials: {error}") from None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Headers of every call."""
        if self.api_key is None:
            return ()
        if not self.api_key or not set(self.api_key.encode(errors="surrogatepass")) <= HEADER_BYTES:
            raise invalid("credentials.api_key: is no text of visible ASCII characters")
        return (("authorization", f"Bearer {self.api_key}"),)
