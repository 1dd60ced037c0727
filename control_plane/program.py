"""What the programs of a control plane do alike, before and after they run."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pypto_serving.process.interrupts import set_server_signals

#: An event loop that wakes up waits so long for a thread that is busy; by Python's default ten times as long.
_SWITCH_SECONDS = 0.0005


def run_program(name: str, program: Callable[[Sequence[str]], int], arguments: Sequence[str] | None) -> int:
    """Run a program and return the exit code: 0 after a signal, 2 for a wrong configuration or model, 1 for anything else.

    `name` begins the line that says why it cannot start.
    """
    set_server_signals()
    from pypto_serving.process import descriptors, logs

    logs.open_standard_streams()
    descriptors.raise_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    # gRPC would write a line of its own, between ours, for every stranger that fails at a TLS handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from pypto_serving.process.start_up import StartUpError

    try:
        return program(sys.argv[1:] if arguments is None else arguments)
    except StartUpError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        set_server_signals()


def run_on_loop(make: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run what `make` imports and makes, on an event loop; raises StartUpError when a package is missing."""
    from pypto_serving.process.start_up import needs_extra

    with needs_extra("control-plane"):
        from control_plane.edge.event_loop import new_event_loop

        running = make()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(running)
