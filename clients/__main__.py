"""`python -m clients`."""

import os
import sys


def _main() -> int:
    # gRPC's own log lines would stand between the lines of an answer.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from clients.cli.main import main

        return main(sys.argv[1:], os.environ)
    except KeyboardInterrupt:  # before the command line could say so
        return 130


if __name__ == "__main__":
    sys.exit(_main())
