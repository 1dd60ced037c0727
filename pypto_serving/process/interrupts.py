"""Signals while no event loop runs: during the imports, and after its end."""

import os
import signal

#: What a shell expects of a process that an interrupt ended.
INTERRUPTED = 130


def end_on_interrupt() -> None:
    """Let an interrupt, or SIGTERM (exit code 0), end the process at once and without a word, until somebody takes the signals over.

    For imports, in any of which the usual exception would surface, and for the time after an event loop, which lets go of the signals. For
    process 1 of a container the kernel drops signals that nobody handles: there SIGTERM would be lost.
    """
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))


def set_server_signals() -> None:
    """`end_on_interrupt`, and let nothing come of SIGHUP: the end of the terminal that a server was started from is not its end."""
    end_on_interrupt()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
