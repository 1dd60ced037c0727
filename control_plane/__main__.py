"""Start of a control plane process: python -m control_plane --model DIR --worker HOST:PORT."""

import os
import sys
from collections.abc import Sequence

from pypto_serving.process.interrupts import set_server_signals

#: An event loop that wakes up waits so long for a thread that is busy; by Python's default ten times as long.
_SWITCH_SECONDS = 0.0005


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a control plane and return the exit code: 0 after a signal, 2 for a wrong configuration or model, 1 for anything else."""
    set_server_signals()
    from pypto_serving.process import descriptors, logs

    logs.open_standard_streams()
    descriptors.raise_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    # gRPC would write a line of its own, between ours, for every stranger that fails at a TLS handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from control_plane.edge.flags.programs import read_config
    from pypto_serving.process.start_up import StartUpError, needs_extra

    config = read_config(sys.argv[1:] if arguments is None else arguments)
    logs.configure(config.log.form, config.log.level)
    try:
        with needs_extra("control-plane"):
            import uvloop

            from control_plane.edge.server import run_control_plane
        return uvloop.run(run_control_plane(config))
    except StartUpError as error:
        print(f"control plane: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        set_server_signals()


if __name__ == "__main__":
    sys.exit(main())
