"""`python -m clients`."""

import os
import signal
import sys

from pypto_serving.process.interrupts import end_on_interrupt


def main() -> int:
    """Run one command of the command line; returns the exit status."""
    end_on_interrupt()
    # gRPC's own log lines would stand between the lines of an answer.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from clients.cli import main as command_line

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the command line ends its request, and says so
    return command_line.main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
