"""Ctrl-C while nobody listens."""

import os
import signal

#: What a shell expects of a process that an interrupt ended.
INTERRUPTED = 130


def end_on_interrupt() -> None:
    """Let an interrupt end the process at once and without a word, until somebody takes the signal over.

    For imports, in any of which the usual exception would surface, and for the time after an event loop, which lets go of the signal.
    """
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
