"""`log-level`: from which level on the processes of a service log."""

import argparse
import sys

from clients.cli.admin_calls import SECONDS, admin_calls
from clients.cli.command import Command, ExitCode
from pypto_serving.process.argument_types import number_between

_MAX_SECONDS = 86400.0
_AT_START = "default"
_DESCRIPTION = """\
Say from which level on the processes of a service log: the control plane's, and the workers in session with it. With --seconds they go
back by themselves. `default` is what each of them was started with. A process that starts later is not told."""


class LogLevel(Command):
    """Tells all processes, or some."""

    name = "log-level"
    summary = "say from which level on the processes of a service log, for some time or for good"
    examples = ("debug --seconds 60", "debug --process 'worker 10.0.0.7:50061'", "default")
    is_for_operators = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.description = _DESCRIPTION
        parser.add_argument("level", choices=("debug", "info", "warning", "error", _AT_START), help="least severe event to log")
        parser.add_argument(
            "--process", default="", metavar="NAME", help="a name as the answer shows it, or how names begin, such as worker; default: all"
        )
        length = number_between(0.001, _MAX_SECONDS)
        parser.add_argument("--seconds", type=length, metavar="S", help="go back after that; default: it stays")

    def run(self, arguments: argparse.Namespace) -> int:
        from pypto_serving.admin.v1 import admin_pb2
        from pypto_serving.log.v1 import log_pb2

        level = "unspecified" if arguments.level == _AT_START else arguments.level
        change = log_pb2.LevelChange(level=log_pb2.Level.Value(f"LEVEL_{level.upper()}"))
        if arguments.seconds is not None:
            change.milliseconds = round(arguments.seconds * 1000)
        request = admin_pb2.SetLogLevelRequest(change=change, process=arguments.process)
        with admin_calls(arguments) as calls:
            answer = calls.stub.SetLogLevel(request, timeout=SECONDS, metadata=calls.metadata)
        ending = "" if arguments.seconds is None else f" for {arguments.seconds:g} s"
        print(f"{arguments.level}{ending}: {', '.join(answer.processes) or 'nobody'}")
        for name in answer.left_out:
            print(f"note: {name} does not know this: it is older", file=sys.stderr)
        return ExitCode.OK if answer.processes else ExitCode.FAILED
