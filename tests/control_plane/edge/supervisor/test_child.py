"""A child, and what it says on its standard output."""

import signal
import sys
import time
from select import select

from control_plane.edge.supervisor.child import Child


def test_what_a_library_prints_ends_nobody() -> None:
    child = Child("child", [sys.executable, "-c", """print('no JSON'); print(7); print('{"well": true}', flush=True); input()"""])
    child.start()
    said: list[dict[str, object]] = []
    while not said:
        select([child.output], [], [])
        said += child.read()
    assert said == [{"well": True}]
    child.send(signal.SIGKILL)
    while not child.reap():
        time.sleep(0.01)
