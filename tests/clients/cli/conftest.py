import asyncio
import io
import os
import sys
from dataclasses import dataclass

import pytest

from clients.cli.main import main


@dataclass
class Ended:
    status: int
    out: str
    err: str


@pytest.fixture
def command_line(capsys, monkeypatch):
    """Runs the command line in a thread, with arguments, what is piped in, a default target, and more of an environment."""

    def in_thread(arguments, environment):
        try:
            return main(arguments, environment)
        except SystemExit as ended:
            return ended.code

    async def run(*arguments, stdin="", target="", environment=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        status = await asyncio.to_thread(in_thread, arguments, {"PYPTO_SERVING_TARGET": target, **dict(environment)})
        return Ended(status, *capsys.readouterr())

    return run


@pytest.fixture
async def start_process():
    """Starts `python -m clients` with arguments and a target; standard output and error are pipes unless given."""
    started = []

    async def start(*arguments, target, stdout=asyncio.subprocess.PIPE):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "clients",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYPTO_SERVING_TARGET": target},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process._transport.close()  # a pipe that the process broke may not have told its transport yet
