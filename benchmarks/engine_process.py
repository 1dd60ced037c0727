"""An engine to compare, as a process that stands still while another one is measured."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_ENGINES = _ROOT / "benchmarks" / "engines"
_OWN_PATH = f"{_ROOT}{os.pathsep}{_ROOT / 'protos'}"


class EngineProcess:
    """The script `run_<name>` of benchmarks/engines. Use it as a context manager.

    `python` is the interpreter of a peer's virtual environment; None for ours. What the engine logs is shown when it dies.
    """

    def __init__(self, name: str, arguments: Sequence[str], python: str | None = None) -> None:
        # As a file, not as a module: our package `kernels` must not stand where a peer looks for the one of that name.
        script = [python or sys.executable, str(_ENGINES / f"run_{name}.py")]
        environment = os.environ | {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))} | ({} if python else {"PYTHONPATH": _OWN_PATH})
        self.name = name
        self._process = subprocess.Popen(
            [*script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._expect_ready()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def seconds(self, streams: int, prompt_tokens: int, max_tokens: int) -> float:
        """Seconds for `max_tokens` greedy tokens after each of `streams` random prompts that begin together, prefill included."""
        os.killpg(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        print(json.dumps([streams, prompt_tokens, max_tokens]), file=self._process.stdin, flush=True)
        seconds = float(self._read_line())
        os.killpg(self._process.pid, signal.SIGSTOP)
        return seconds

    def tokens_per_second(self, streams: int, prompt_tokens: int, max_tokens: int) -> float:
        """Generated tokens per second of the same."""
        return streams * max_tokens / self.seconds(streams, prompt_tokens, max_tokens)

    def _expect_ready(self) -> None:
        while self._read_line() != "ready":  # some engines print what they do while they load
            pass
        os.killpg(self._process.pid, signal.SIGSTOP)

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"engine {self.name} died; its last lines are above")
        return line.strip()
