"""The hash of every byte of a checkpoint, made once it is loaded."""

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)


class WeightsHash:
    """Hashes the weight files of a model on threads of its own, once they are loaded: their pages are cached, and nothing starts later.

    The fingerprint looks at a few bytes of every tensor, within milliseconds; this finds a single changed bit. It is SHA-256, as model hubs
    publish it of each file and `sha256sum` prints it. The threads take what time others leave, and keep no process from ending.
    """

    def __init__(self, files: Sequence[Path], num_threads: int) -> None:
        """Begin to hash `files`."""
        self.digest = ""  # over names and digests of all files, 64 hexadecimal digits; empty until it is known, or if one cannot be read
        self._files = tuple(files)
        self._unread: Iterator[Path] = iter(self._files)
        self._digests: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, name="weights hash", daemon=True) for _ in self._files[:num_threads]]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait until all is done."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # on Linux of this thread alone
        while (path := self._next()) is not None:
            try:
                with path.open("rb") as file:
                    self._put(path, hashlib.file_digest(file, "sha256").hexdigest())
            except OSError as error:
                _log.warning("weights not hashed", extra={"file": str(path), "reason": error.strerror})

    def _next(self) -> Path | None:
        with self._lock:
            return next(self._unread, None)

    def _put(self, path: Path, digest: str) -> None:
        with self._lock:
            self._digests[path] = digest
            if len(self._digests) < len(self._files):
                return
        printed = "".join(f"{self._digests[path]}  {path.name}\n" for path in self._files)  # as sha256sum prints it
        self.digest = hashlib.sha256(printed.encode()).hexdigest()
        _log.info("weights hashed", extra={"weights_digest": self.digest})
