"""The other end of a child: what it tells the supervisor, and how it learns that there is none any more."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping

_BEAT_SECONDS = 1.0


def tell_parent(**said: object) -> None:
    """Tell the supervisor; without one that still listens nobody hears it."""
    line = (json.dumps(said) + "\n").encode()
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), line)


def tell_serving(ports: Mapping[str, int], shown: Mapping[str, object]) -> None:
    """Say that we serve, on which ports (by what stands before -port in the flag), and what the log should say of it."""
    tell_parent(serving={"ports": dict(ports), **shown})


def attend_parent(end: Callable[[], object], is_well: Callable[[], bool] = lambda: True) -> None:
    """Call `end` when the supervisor is gone, however it went; tell it every second that we are well. On the running event loop."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def look() -> None:
        if not os.read(descriptor, 1):
            loop.remove_reader(descriptor)
            end()

    def beat() -> None:
        if is_well():
            tell_parent(well=True)
        loop.call_later(_BEAT_SECONDS, beat)

    loop.add_reader(descriptor, look)
    beat()
