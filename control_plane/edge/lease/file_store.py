"""A lease in a file, for schedulers that share a file system."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from control_plane.edge.lease.keeper import LeaseRecord, LeaseUnreachable


class FileLeaseStore:
    """A JSON file, replaced as a whole. A lock beside it lets one process at a time compare and replace it.

    A lock that lasts longer than a lease is broken: whoever has it is frozen, and finds its lease over when it wakes up.
    """

    def __init__(self, path: Path, lock_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`lock_seconds`: at least as long as the lease."""
        self._path = path
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._lock_seconds = lock_seconds
        self._clock = clock
        self._locked_by_others: tuple[int, float] | None = None  # inode of the lock, and since when

    def read(self) -> LeaseRecord | None:
        try:
            content = self._path.read_text(encoding="utf-8")
            record = json.loads(content)
            return LeaseRecord(str(record["holder"]), float(record["lease_seconds"]), content)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LeaseUnreachable(f"{self._path}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError):
            raise LeaseUnreachable(f"{self._path}: is no lease: remove it if nobody needs what it says") from None

    def write(self, holder: str, seconds: float, seen: LeaseRecord | None) -> LeaseRecord | None:
        renewed = datetime.now(UTC).isoformat(timespec="microseconds")
        content = json.dumps({"holder": holder, "renewed": renewed, "lease_seconds": seconds, "nonce": os.urandom(8).hex()}) + "\n"
        beside = self._path.with_name(f"{self._path.name}.{os.urandom(8).hex()}")
        try:
            beside.write_text(content, encoding="utf-8")
            with self._lock() as is_ours:
                if not is_ours or self.read() != seen:
                    return None
                beside.replace(self._path)
        except OSError as error:
            raise LeaseUnreachable(f"{self._path}: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
        return LeaseRecord(holder, seconds, content)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._break_lock(os.fstat(descriptor).st_ino)
                yield False
                return
            self._locked_by_others = None
            # The file may have been broken, and made anew, since it was opened.
            yield self._inode() == os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)

    def _break_lock(self, inode: int) -> None:
        if self._locked_by_others is None or self._locked_by_others[0] != inode:
            self._locked_by_others = inode, self._clock()
        elif self._clock() - self._locked_by_others[1] >= self._lock_seconds and self._inode() == inode:
            self._lock_path.unlink(missing_ok=True)

    def _inode(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self._lock_path).st_ino
        return 0
