"""`profile`: records what every process of a service does, as one trace."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clients.cli.admin_calls import SECONDS, AdminCalls, admin_calls
from clients.cli.command import Command, ExitCode, UsageError, writes
from pypto_serving.process.argument_types import between, number_between

if TYPE_CHECKING:
    from clients.chrome_trace import ChromeTrace

_LEVELS = ("requests", "steps", "operators", "kernels")
_FETCH_SECONDS = 300.0
_MAX_SECONDS, _MAX_SPANS = 600.0, 1_000_000
_TRIED_BYTES = 1 << 16


class Profile(Command):
    """Starts and stops a recording, or does both."""

    name = "profile"
    summary = "record what every process of a service does, as a trace for Perfetto"
    examples = (
        "run --seconds 10 --output trace.json.gz",
        "start --level operators",
        "stop --target 127.0.0.1:50055 --output trace.json",
    )
    is_for_operators = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", choices=("run", "start", "stop"), help="run: start, wait and stop")
        parser.add_argument("--level", choices=_LEVELS, default="steps", help="how much; each includes those before it (%(default)s)")
        length = number_between(0.001, _MAX_SECONDS)
        parser.add_argument(
            "--seconds", type=length, metavar="S", help="how long `run` records (10), and after which time what `start` began ends (60)"
        )
        parser.add_argument(
            "--max-spans", type=between(1, _MAX_SPANS), default=200_000, metavar="N", help="spans that each process keeps (%(default)s)"
        )
        output = Path("trace.json.gz")
        parser.add_argument("-o", "--output", type=Path, default=output, metavar="FILE", help="compressed if it ends in .gz (%(default)s)")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.action != "start" and not arguments.output.absolute().parent.is_dir():
            raise UsageError(f"--output: {arguments.output.parent} is no folder")
        if arguments.action != "start" and arguments.output.is_dir():
            raise UsageError(f"--output: {arguments.output} is a folder; name a file in it")
        if arguments.action != "start":
            _try_output(arguments.output)
        seconds: float = arguments.seconds or (10.0 if arguments.action == "run" else 60.0)
        with admin_calls(arguments) as calls:
            recording_id = "" if arguments.action == "stop" else _start(calls, arguments, seconds)
            if arguments.action == "start":
                return ExitCode.OK
            if arguments.action == "run":
                time.sleep(seconds)
            trace = _stop(calls, recording_id)
        with writes("--output", arguments.output):
            trace.write(arguments.output)
        for note in trace.notes:
            print(f"note: {note}", file=sys.stderr)
        print(f"{arguments.output}: {trace.num_spans} spans; open it at https://ui.perfetto.dev")
        return ExitCode.OK


def _try_output(path: Path) -> None:
    """Write a little and take it back: a recording is handed out once. Raises UsageError for what cannot be written."""
    is_new = not path.exists()
    try:
        with path.open("ab", buffering=0) as file:
            is_regular, size = path.is_file(), os.fstat(file.fileno()).st_size
            file.write(bytes(_TRIED_BYTES) if is_regular else b"")
            if is_regular:
                file.truncate(size)
        if is_new:
            path.unlink()
    except OSError as error:
        raise UsageError(f"--output: {path}: {error.strerror}") from None


def _start(calls: AdminCalls, arguments: argparse.Namespace, seconds: float) -> str:
    """Begin; returns the recording's id."""
    from pypto_serving.admin.v1 import admin_pb2 as pb
    from pypto_serving.profile.v1 import profile_pb2

    level = profile_pb2.Level.Value(f"LEVEL_{arguments.level.upper()}")
    request = pb.StartProfileRequest(level=level, max_seconds=seconds, max_spans=arguments.max_spans)
    started = calls.stub.StartProfile(request, timeout=SECONDS, metadata=calls.metadata)
    for name in started.left_out:
        print(f"note: {name} does not know recordings: it is older", file=sys.stderr)
    print(f"recording {started.recording_id} of {', '.join(started.processes)}, for {seconds:g} s at most")
    return started.recording_id


def _stop(calls: AdminCalls, recording_id: str) -> "ChromeTrace":
    """End; returns what was recorded."""
    from clients.chrome_trace import ChromeTrace
    from pypto_serving.admin.v1 import admin_pb2 as pb

    trace = ChromeTrace()
    request = pb.StopProfileRequest(recording_id=recording_id)
    for part in calls.stub.StopProfile(request, timeout=_FETCH_SECONDS, metadata=calls.metadata):
        trace.add(part)
    return trace
