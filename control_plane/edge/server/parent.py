"""The other end of a child: what it tells the supervisor, and how it learns that there is none any more."""

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pypto_serving.process.start_up import StartUpError

_BEAT_SECONDS = 1.0


def tell_parent(**said: object) -> None:
    """Tell the supervisor; without one that still listens nobody hears it."""
    line = (json.dumps(said) + "\n").encode()
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), line)


def tell_serving(ports: Mapping[str, int], shown: Mapping[str, object]) -> None:
    """Say that we serve, on which ports (by what stands before -port in the flag), and what the log should say of it."""
    tell_parent(serving={"ports": dict(ports), **shown})


def attend_parent(meets_at: Path, end: Callable[[], object], is_well: Callable[[], bool] = lambda: True) -> None:
    """Call `end` when the supervisor is gone, however it went; tell it every second that we are well. On the running event loop.

    `meets_at`: the socket of the scheduler. With its directory it is removed then: a supervisor that was killed could not.
    """
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        raise StartUpError("--part is what a supervisor gives to its children: standard input has to be a pipe, which ends with it")

    def look() -> None:
        if not os.read(descriptor, 1):
            loop.remove_reader(descriptor)
            with contextlib.suppress(OSError):  # another child has done it
                meets_at.unlink(missing_ok=True)
                meets_at.parent.rmdir()
            end()

    def beat() -> None:
        if is_well():
            tell_parent(well=True)
        loop.call_later(_BEAT_SECONDS, beat)

    loop.add_reader(descriptor, look)
    beat()
