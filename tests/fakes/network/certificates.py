"""Certificates for tests, and where they lie on disk."""

import datetime
from pathlib import Path

import trustme

from pypto_serving.process.credentials.files import TlsFiles

_PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class CertificateDirectory:
    """A certificate authority, and a directory with its certificate and the pairs that it has issued."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.ca = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, host: str = "127.0.0.1", is_expired: bool = False) -> TlsFiles:
        """Write a new pair name.pem, name.key for `host`, over an older one if there is one; `ca` is our authority."""
        expiry = _PAST if is_expired else None
        issued = self.authority.issue_cert(host, "localhost", not_after=expiry, key_type=trustme.KeyType.ECDSA)
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        key.write_bytes(issued.private_key_pem.bytes())
        cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return TlsFiles(cert, key, self.ca)
