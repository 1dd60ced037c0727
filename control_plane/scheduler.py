"""Start of a scheduler alone: python -m control_plane.scheduler --model DIR --worker HOST:PORT."""

import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from control_plane.program import run_on_loop, run_program

if TYPE_CHECKING:
    from control_plane.edge.config import SchedulerConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scheduler and return the exit code."""
    return run_program("scheduler", _run, arguments)


def _run(arguments: Sequence[str]) -> int:
    from control_plane.edge.flags.programs import read_scheduler_config
    from pypto_serving.process import logs

    config, log = read_scheduler_config(arguments)
    logs.configure(log.form, log.level)
    return run_on_loop(lambda: _serve(config))


def _serve(config: "SchedulerConfig") -> Coroutine[Any, Any, int]:
    from control_plane.edge.server.scheduler_process import run_scheduler

    return run_scheduler(config)


if __name__ == "__main__":
    sys.exit(main())
