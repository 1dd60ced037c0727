"""`python -m clients`."""

import os
import sys

from clients.cli.main import main

if __name__ == "__main__":
    # gRPC's own log lines would stand between the lines of an answer.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main(sys.argv[1:], os.environ))
