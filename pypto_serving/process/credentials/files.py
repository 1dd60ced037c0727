"""Files of certificates and keys, which may be replaced while the process runs. Nothing here imports gRPC, so that --help is fast."""

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pypto_serving.process.start_up import StartUpError

_log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 1024 * 1024

T = TypeVar("T")

#: What a key may consist of: visible ASCII.
HEADER_BYTES = frozenset(range(0x21, 0x7F))


class FileRefused(Exception):
    """What a file says makes no sense; the message is one line that names the file, and shows nothing of a secret one."""


class ReloadedFiles(Generic[T]):
    """What some files say, together. They are read at every use; while they are missing or broken the last good content stays.

    `parse` takes their contents in the order of `paths` and raises FileRefused. Every change is logged once. Threads may share it.
    """

    def __init__(self, name: str, paths: Sequence[Path], parse: Callable[[Sequence[bytes]], T]) -> None:
        """Read them; raises StartUpError. `name` is for logs and metrics."""
        self.name = name
        self.num_reloads = 0
        self.num_refusals = 0
        self._paths = tuple(paths)
        self._parse = parse
        self._lock = threading.Lock()
        try:
            contents = self._read()
            self._value = parse(contents)
        except FileRefused as error:
            raise StartUpError(str(error)) from None
        self._seen = _signature(contents)

    def current(self) -> T:
        """The newest good content."""
        with self._lock:
            try:
                contents = self._read()
            except FileRefused as error:
                self._refuse(str(error), str(error))
            else:
                if _signature(contents) != self._seen:
                    self._replace(contents)
            return self._value

    def _read(self) -> list[bytes]:
        return [_content(path) for path in self._paths]

    def _replace(self, contents: list[bytes]) -> None:
        signature = _signature(contents)
        try:
            value = self._parse(contents)
            if _signature(self._read()) != signature:
                return  # they are being replaced right now: the next use sees them whole
        except FileRefused as error:
            self._refuse(signature, str(error))
            return
        self._value, self._seen = value, signature
        self.num_reloads += 1
        _log.info("credentials reloaded", extra={"credentials": self.name})

    def _refuse(self, seen: str, reason: str) -> None:
        if seen == self._seen:
            return
        self._seen = seen
        self.num_refusals += 1
        _log.error("credentials not reloaded, the last good ones stay", extra={"credentials": self.name, "reason": reason})


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise FileRefused(f"{path}: {'is no regular file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise FileRefused(f"{path}: has more than {_MAX_FILE_BYTES} bytes")
    return content


def _signature(contents: Sequence[bytes]) -> str:
    return " ".join(hashlib.sha256(content).hexdigest() for content in contents)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one end of a connection. `ca` signs the certificates that the other end must show."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key, and the words behind it."""

    number: int
    key: bytes
    options: tuple[str, ...] = ()


def parse_keys(path: Path, content: bytes) -> tuple[KeyLine, ...]:
    """The keys in a file; raises FileRefused when there is none, or one that no header could carry."""
    keys = []
    for number, line in enumerate(content.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        if not all(set(word) <= HEADER_BYTES for word in words):
            raise FileRefused(f"{path}, line {number}: a key, and what stands behind it, consists of visible ASCII characters")
        keys.append(KeyLine(number, words[0], tuple(word.decode() for word in words[1:])))
    if not keys:
        raise FileRefused(f"{path}: holds no key")
    return tuple(keys)


def read_key(path: Path) -> str:
    """The key in a file that holds one, to be shown to a server; raises FileRefused."""
    keys = parse_keys(path, _content(path))
    if len(keys) > 1:
        raise FileRefused(f"{path}: holds {len(keys)} keys, must be one")
    return keys[0].key.decode()
