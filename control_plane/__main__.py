"""Start of a control plane: python -m control_plane --model DIR --worker HOST:PORT."""

import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from control_plane.program import run_on_loop, run_program

if TYPE_CHECKING:
    from control_plane.edge.config import Config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a control plane, in one process or as the supervisor of several, and return the exit code."""
    return run_program("control plane", _run, arguments)


def _run(arguments: Sequence[str]) -> int:
    from control_plane.edge.flags.programs import read_config
    from pypto_serving.process import logs

    config = read_config(arguments)
    logs.configure(config.log.form, config.log.level, **({"part": config.part_name} if config.part else {}))
    if config.num_front_ends and config.part is None:
        from control_plane.edge.supervisor.processes import supervise

        return supervise(config, arguments)
    return run_on_loop(lambda: _serve(config))


def _serve(config: "Config") -> Coroutine[Any, Any, int]:
    from control_plane.edge.config import Part

    if config.part is Part.SCHEDULER:
        from control_plane.edge.server.scheduler_process import run_scheduler

        return run_scheduler(config.scheduler, is_supervised=True)
    if config.part is Part.FRONT_END:
        from control_plane.edge.server.front_end_process import run_front_end

        return run_front_end(config.front_end, config.meets_at)
    from control_plane.edge.server.one_process import run_control_plane

    return run_control_plane(config)


if __name__ == "__main__":
    sys.exit(main())
