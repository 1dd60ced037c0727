"""Keys that callers must show."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path

from pypto_serving.process.credentials.key_file import parse_keys
from pypto_serving.process.credentials.reloaded_files import ReloadedFiles


class Keys:
    """Some keys, of which any one will do. How long a check takes says nothing about them."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._digests = tuple(hashlib.sha256(key).digest() for key in keys)

    def __contains__(self, key: bytes) -> bool:
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0  # `any` would stop at the first


ReloadedKeys = ReloadedFiles[Keys]


def watch_keys(name: str, path: Path) -> ReloadedKeys:
    """Read a file of keys and go on watching it; raises StartUpError."""

    def parse(contents: Sequence[bytes]) -> Keys:
        return Keys(parse_keys(path, contents[0]))

    return ReloadedFiles(name, [path], parse)
