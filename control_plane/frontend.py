"""Start of a front end alone: python -m control_plane.frontend --model DIR --scheduler HOST:PORT."""

import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from control_plane.program import run_on_loop, run_program

if TYPE_CHECKING:
    from control_plane.edge.config import FrontEndConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a front end and return the exit code."""
    return run_program("front end", _run, arguments)


def _run(arguments: Sequence[str]) -> int:
    from control_plane.edge.flags.programs import read_front_end_config
    from pypto_serving.process import logs

    config, log = read_front_end_config(arguments)
    logs.configure(log.form, log.level)
    return run_on_loop(lambda: _serve(config))


def _serve(config: "FrontEndConfig") -> Coroutine[Any, Any, int]:
    from control_plane.edge.server.front_end_process import run_front_end

    return run_front_end(config)


if __name__ == "__main__":
    sys.exit(main())
