"""A process that a supervisor starts, and starts again when it has died."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from pypto_serving.process.lives import Lives

_READ_BYTES = 65536


class Child:
    """Belongs to the supervisor's loop, which reads `output` and calls `reap`.

    A child says on its standard output what the supervisor has to know, one JSON object a line, and every second that it is well. Its
    standard input ends with the supervisor.
    """

    def __init__(self, name: str, command: Sequence[str], again: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """`again`: arguments of every life but the first."""
        self.name = name
        self.served: dict[str, Any] = {}  # what it said when it first served; empty until then
        self.exit_code: int | None = None  # of its last life
        self._command = list(command)
        self._again = list(again)
        self._lives = Lives(clock)
        self._process: subprocess.Popen[bytes] | None = None
        self._line = b""
        self.silent_seconds = 0.0  # since it last said something
        self.due: float | None = None  # when it is to be started

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None

    @property
    def is_serving(self) -> bool:
        """Whether it has said in this life that it serves."""
        return self._lives.is_serving

    @property
    def never_starts(self) -> bool:
        """Whether there is no use in trying again."""
        return self._lives.never_starts

    @property
    def output(self) -> int:
        """Descriptor of its standard output, while it runs."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(self) -> None:
        """Begin a life. In a process group of its own: an interrupt at the terminal is the supervisor's to pass on."""
        self.due, self.silent_seconds = None, 0.0
        arguments = [*self._command, *(self._again if self.exit_code is not None else ()), *self._known_ports()]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def read(self) -> list[dict[str, Any]]:
        """What it has said since the last call."""
        try:
            self._line += os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return []
        self.silent_seconds = 0.0
        *lines, self._line = self._line.split(b"\n")
        said = [said for line in lines if (said := _said(line))]
        for each in said:
            if "serving" in each:
                self._lives.serves()
                self.served = self.served or each["serving"]
        return said

    def reap(self) -> bool:
        """Whether its life has ended since the last call; then `due` says when the next one would begin."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        self._close()
        self.exit_code = code
        self.due = self._lives.end()
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def _close(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process, self._line = None, b""

    def _known_ports(self) -> list[str]:
        """Flags that make it listen where it did before, also on ports that were any free ones."""
        ports: dict[str, int] = self.served.get("ports", {})
        return [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]


def _said(line: bytes) -> dict[str, Any] | None:
    """What a line says; None: a library has printed it, which is no reason to end everything."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
