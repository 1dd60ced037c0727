"""The processes of a control plane, as a supervisor starts them."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from control_plane.edge.config import Config, Part, front_end_exposures, scheduler_exposures
from control_plane.edge.supervisor.child import Child
from control_plane.edge.supervisor.shared_port import shared_port
from control_plane.edge.supervisor.supervisor import Supervisor

_log = logging.getLogger(__name__)


def supervise(config: Config, arguments: Sequence[str]) -> int:
    """Run them until a signal comes; returns the exit code. Raises StartUpError when the clients' port is taken.

    They get our own arguments, and hidden ones that say which part each of them is. They meet in a directory that only we may enter.
    """
    address = config.front_end.address
    with shared_port(address.host, address.port) as port, TemporaryDirectory(prefix="pypto-serving-") as directory:
        command = [sys.executable, "-m", "control_plane", *arguments, "--socket", str(Path(directory) / "scheduler")]
        # Its predecessor is known to be dead: workers need not wait for it.
        scheduler = Child("scheduler", [*command, "--part", Part.SCHEDULER.value], again=["--takeover"])
        front_ends = [
            Child(f"frontend-{number}", [*command, "--part", str(number), "--port", str(port)]) for number in range(config.num_front_ends)
        ]
        for exposure in (*front_end_exposures(config.front_end), *scheduler_exposures(config.scheduler)):
            _log.warning(exposure)
        return Supervisor(scheduler, front_ends, config.front_end.drain_seconds).run()
