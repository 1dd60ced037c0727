"""File descriptors of the process: as many as it may have, and a line in the log before they run out."""

import errno
import logging
import os
import resource
import time
from contextlib import suppress

_log = logging.getLogger(__name__)

_SHORT_SHARE = 0.9
_CHECK_SECONDS = 10.0
_QUIET_SECONDS = 60.0  # after a line


def raise_limit() -> None:
    """Raise the soft limit to the hard one. Soft ones are low for programs that use select(), which cannot take large descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system that has a lower limit of its own: the soft one stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DescriptorWatch:
    """Logs when most descriptors are taken: gRPC, when it cannot accept a connection, says nothing."""

    def __init__(self) -> None:
        self._next_check = 0.0

    def check(self) -> None:
        """Count every 10 s, however often it is called; a shortage that lasts is one line a minute."""
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + (_QUIET_SECONDS if _warn_if_short() else _CHECK_SECONDS)


def _warn_if_short() -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        num_open = len(os.listdir("/proc/self/fd"))
    except OSError as error:
        num_open = limit if error.errno == errno.EMFILE else 0  # a system without /proc
    is_short = limit != resource.RLIM_INFINITY and num_open > _SHORT_SHARE * limit
    if is_short:
        _log.warning(
            "file descriptors run out, then new connections fail: raise the limit (ulimit -n, LimitNOFILE of systemd)",
            extra={"open": num_open, "limit": limit},
        )
    return is_short
