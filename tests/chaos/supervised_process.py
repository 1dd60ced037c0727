"""One of our processes, started again whenever it dies."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

from fakes.network.tcp_proxy import TcpProxy
from harness.processes import fixed_ports

_POLL_SECONDS = 0.02
_ORPHAN_SECONDS = 15.0  # in which the children of a process that was killed have to end
_TESTS = Path(__file__).parents[1]


class SupervisedProcess:
    """`python -m MODULE` on a fixed port, reached through a proxy that refuses connections while nobody listens behind it.

    `run` keeps it alive. The log of all its lives is one file; without one, it writes into a pipe that nobody reads. A life begins when
    all processes of the one before are gone.
    """

    def __init__(
        self, arguments: Sequence[str], port: int, proxy: TcpProxy, log: Path | None, port_flag: str = "--port", excuse: bytes = b""
    ) -> None:
        """`excuse`: what it logs when it has a reason to end by itself."""
        self.proxy = proxy
        self.port = port
        self._excuse = excuse
        self.unexpected_exit_codes: list[int] = []  # of lives that nobody ended
        (self._metrics_port,) = fixed_ports(1)
        self._command = [sys.executable, "-m", *arguments, port_flag, str(port), "--metrics-port", str(self._metrics_port)]
        self._log = log
        self._log_start = 0  # of the present life
        self._process: subprocess.Popen[bytes]
        self._is_killed = self._is_asked_to_end = self._is_over = False

    @property
    def pid(self) -> int:
        """Id of the present life."""
        return self._process.pid

    async def run(self) -> None:
        """Start it, wait for its end, and again, until `end`."""
        try:
            while not self._is_over:
                await self._live()
        finally:
            self._process.kill()
            self._process.wait()
            await self.proxy.stop()

    def has_logged(self, text: bytes) -> bool:
        """Whether it has written something into its log in its present life."""
        assert self._log is not None
        return text in self._log.read_bytes()[self._log_start :]

    def metrics(self) -> dict[str, float]:
        """Value of every sample that Prometheus would scrape now, by name and labels."""
        with urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def kill(self) -> None:
        """Kill it, without a word."""
        self._is_killed = True
        self._process.kill()

    async def freeze(self, seconds: float) -> None:
        """Stop it for a while; when it is killed meanwhile its successor goes on."""
        process = self._process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def drain(self) -> None:
        """Ask it to finish what it has begun and to end; its successor follows."""
        self._is_asked_to_end = True
        self._process.terminate()

    def end(self) -> None:
        """As `drain`, but then `run` ends as well, even if it is frozen."""
        self._is_over = True
        self.drain()
        self._process.send_signal(signal.SIGCONT)

    async def _live(self) -> None:
        self._is_killed = self._is_asked_to_end = False
        self._log_start = self._log.stat().st_size if self._log and self._log.exists() else 0
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self._log.open("ab")) if self._log else subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=log, env=_environment())
        admission = asyncio.create_task(self._admit())
        descendants: set[int] = set()
        while self._process.poll() is None:
            descendants |= set(children(self.pid))
            await asyncio.sleep(_POLL_SECONDS)
        admission.cancel()
        if self._process.stderr:
            self._process.stderr.close()
        self.proxy.refuse()
        async with asyncio.timeout(_ORPHAN_SECONDS):
            while any(map(_is_running, descendants)):
                await asyncio.sleep(_POLL_SECONDS)
        ends_well = (0, -signal.SIGTERM)  # the latter before Python could listen to signals
        is_excused = self._excuse and self.has_logged(self._excuse)
        if not self._is_killed and not is_excused and not (self._is_asked_to_end and self._process.returncode in ends_well):
            self.unexpected_exit_codes.append(self._process.returncode)

    async def _admit(self) -> None:
        """Let connections come as soon as the process listens."""
        while not await self._is_listening():
            await asyncio.sleep(_POLL_SECONDS)
        await self.proxy.start()

    async def _is_listening(self) -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.close()
            return True
        return False


def children(pid: int) -> list[int]:
    """Ids of the processes that a process has started and that run."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"  # nobody may have asked how it ended
    return False


def _environment() -> dict[str, str]:
    """That of the tests, whose modules can be run as well."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_TESTS))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
