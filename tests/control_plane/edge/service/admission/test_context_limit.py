"""For whom requests wait while nobody has told the limit, and for how long."""

import asyncio
from dataclasses import replace

import pytest
from harness.waiting import until

from control_plane.edge.service.admission.context_limit import Absence, ContextLimit
from control_plane.edge.service.errors import Unavailable


class _Frozen:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_without_a_scheduler_requests_wait_by_its_grace_and_say_so():
    limit = ContextLimit(60.0, 1)
    limit.absence = lambda: Absence("no scheduler within 0.05 s: nobody listens", 0.05)
    with pytest.raises(Unavailable, match=r"no scheduler within 0\.05 s: nobody listens"):
        await limit.get()


async def test_a_worker_has_its_whole_grace_after_the_scheduler_came():
    limit, clock = ContextLimit(0.1, 1, clock := _Frozen()), clock
    limit.absence = lambda: Absence("no scheduler", 0.05)
    waiting = asyncio.create_task(limit.get())
    await until(lambda: limit.num_waiting)
    clock.now = 50.0
    limit.absence = lambda: replace(limit.no_worker, since=50.0)
    await asyncio.sleep(0.2)
    assert not waiting.done()
    clock.now = 50.2
    with pytest.raises(Unavailable, match=r"no worker came into session within 0\.1 s"):
        await waiting


async def test_what_waited_while_the_process_stood_still_goes_on_waiting():
    limit = ContextLimit(0.01, 1, _Frozen())
    waiting = asyncio.create_task(limit.get())
    await asyncio.sleep(0.1)
    limit.set(7)
    assert await waiting == 7
