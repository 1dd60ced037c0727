"""How a server is reached: what is shown to it, and the channels to it."""

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from clients.errors import invalid
from pypto_serving.process.address import proxy_options
from pypto_serving.process.credentials.files import HEADER_BYTES, TlsFiles
from pypto_serving.process.credentials.tls import channel_credentials, watch_tls
from pypto_serving.process.start_up import StartUpError

#: Largest request in bytes, which is the server's limit, and largest response.
MAX_REQUEST_BYTES = 16 * 1024 * 1024
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

#: Where a server listens unless told otherwise.
DEFAULT_TARGET = "127.0.0.1:50051"

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    # A frozen or unplugged peer is noticed after 15 s; grpc.keepalive_timeout_ms alone takes a minute.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnection is paced by our own backoff; gRPC's own would sit out up to two minutes. The minimum is also the time given to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # One client's connection, and its failures, are its own.
    ("grpc.use_local_subchannel_pool", 1),
    # Resuming is ours: a transparent second try would send a request twice.
    ("grpc.enable_retries", 0),
)


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


def open_channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    """A channel for threads, in plain text without credentials; it connects at the first call."""
    options = (*OPTIONS, *proxy_options(target))
    return grpc.secure_channel(target, credentials, options=options) if credentials else grpc.insecure_channel(target, options=options)


def open_async_channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel for the running event loop, in plain text without credentials; it connects at the first call."""
    options = (*OPTIONS, *proxy_options(target))
    if credentials:
        return grpc.aio.secure_channel(target, credentials, options=options)
    return grpc.aio.insecure_channel(target, options=options)
