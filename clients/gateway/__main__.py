"""Start of a gateway process: python -m clients.gateway --target HOST:PORT."""

import os
import sys
from collections.abc import Sequence

from pypto_serving.process.interrupts import set_server_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a gateway and return the exit code: 0 after a signal, 2 for a wrong configuration, 1 for anything else."""
    set_server_signals()
    from pypto_serving.process import descriptors, logs

    logs.open_standard_streams()
    descriptors.raise_limit()
    # gRPC would write lines of its own between ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # With gRPC's older poller a message passes one thread less on its way here: a third less CPU for each (docs/gateway.md).
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
    from clients.gateway.config import read_config
    from pypto_serving.process.start_up import StartUpError, needs_extra

    config = read_config(sys.argv[1:] if arguments is None else arguments)
    logs.configure(config.log_format, config.log_level)
    try:
        with needs_extra("gateway"):
            import uvloop

            from clients.gateway.server import run_gateway
        return uvloop.run(run_gateway(config))
    except StartUpError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        set_server_signals()


if __name__ == "__main__":
    sys.exit(main())
