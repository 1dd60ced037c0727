"""Where certificates lie. Nothing here imports gRPC, so that --help is fast."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one end of a connection. `ca` signs the certificates that the other end must show."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
