"""How a command ends."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


EXPLANATION = """exit status:
  0    ok
  1    the request failed
  2    bad usage
  3    server not reachable, or not available
  130  interrupted"""
