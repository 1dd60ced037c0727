"""The processes of the service together: they begin, are begun again, and end."""

import asyncio
import logging
import signal
import time
from collections.abc import Sequence

from clients.serve.child import Child
from clients.serve.plan import Plan, Program

_log = logging.getLogger(__name__)

_KILL_SECONDS = 10.0  # for an end that was asked for twice


class Service:
    """Belongs to one event loop, whose signals it takes over."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.monotonic()
        self._is_ready = False
        self._exit_code = 0
        self._failure = ""  # why everything ends
        self._ending, self._urgent = asyncio.Event(), asyncio.Event()
        self._front = [self._child(program) for program in plan.front]
        self._workers = [self._child(program) for program in plan.workers]

    def _child(self, program: Program) -> Child:
        return Child(*program, self._child_serves)

    @property
    def _children(self) -> list[Child]:
        return [*self._front, *self._workers]

    async def run(self) -> int:
        """Run until a signal, a drain, or until something cannot be started; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        workers = [asyncio.create_task(self._keep(child)) for child in self._workers]
        front = [asyncio.create_task(self._keep(child)) for child in self._front]
        killing = asyncio.create_task(self._kill_when_urgent())
        await self._ending.wait()
        self._send(signal.SIGTERM, self._front)
        await asyncio.gather(*front)
        self._send(signal.SIGTERM, self._workers)  # not before: what runs on them has to end
        await asyncio.gather(*workers)
        killing.cancel()
        if self._failure:
            _log.error(self._failure, extra={"exit_code": self._exit_code})  # last: it is what whoever started it looks for
        return self._exit_code

    def _stop(self) -> None:
        """Drain; the second time, end at once."""
        if self._ending.is_set():
            self._urgent.set()
        else:
            _log.info("draining; another signal ends it at once")
        self._ending.set()

    async def _kill_when_urgent(self) -> None:
        await self._urgent.wait()
        self._send(signal.SIGTERM, self._children)  # to those that drain the second one
        await asyncio.sleep(0.1)
        self._send(signal.SIGTERM, self._workers)
        await asyncio.sleep(_KILL_SECONDS)
        self._send(signal.SIGKILL, self._children)

    async def _keep(self, child: Child) -> None:
        try:
            await self._live_again(child)
        except Exception as error:  # nobody would look after the child any more
            _log.debug("a process cannot be kept", exc_info=True, extra={"program": child.name})
            self._give_up(f"{child.name} cannot go on: {error}", 1)

    async def _live_again(self, child: Child) -> None:
        while not self._ending.is_set():
            code = await child.live()
            has_served, due = child.lives.is_serving, child.lives.end()
            if self._ending.is_set():
                return
            if child in self._front and has_served and code == 0:  # it was asked to: `drain`, or a signal of its own
                _log.info("a process has ended in good order, and so do all", extra={"program": child.name})
                self._ending.set()
                return
            if child.lives.never_starts:
                why = f": {child.last_line}" if child.last_line else f": it ended with exit code {code}"
                self._give_up(f"{child.name} cannot start{why}", code if code > 0 else 1)
                return
            _log.error("a process has ended and is started again", extra={"program": child.name, "exit_code": code})
            await self._sleep_until(due)

    async def _sleep_until(self, due: float) -> None:
        try:
            await asyncio.wait_for(self._ending.wait(), max(0.0, due - time.monotonic()))
        except TimeoutError:
            return

    def _give_up(self, why: str, exit_code: int) -> None:
        """End everything; what went wrong first is told."""
        if not self._failure:
            self._failure, self._exit_code = why, exit_code
        self._ending.set()
        self._urgent.set()

    def _child_serves(self) -> None:
        if self._is_ready or not all(child.lives.is_serving for child in self._children):
            return
        self._is_ready = True
        print(f"{self._plan.ready_line} (after {time.monotonic() - self._began:.1f} s; Ctrl-C ends it)", flush=True)

    def _send(self, number: signal.Signals, children: Sequence[Child]) -> None:
        for child in children:
            child.send(number)
