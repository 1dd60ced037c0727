"""What goes wrong, and when: a plan that depends on its seed only, and its execution."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from chaos.cluster import NUM_WORKERS, Cluster
from chaos.frame_proxy import Mischief
from chaos.supervised_process import SupervisedProcess
from fakes.network.tcp_proxy import TcpProxy

Inject = Callable[[Cluster, int, float], Awaitable[None]]


async def _kill(process: SupervisedProcess) -> None:
    process.kill()


async def _drain(process: SupervisedProcess) -> None:
    process.drain()


async def _cut(proxy: TcpProxy) -> None:
    proxy.cut()


async def _swallow(proxy: TcpProxy) -> None:
    proxy.swallow()


async def _hold(proxy: TcpProxy, seconds: float) -> None:
    proxy.hold()
    await asyncio.sleep(seconds)
    proxy.let_go()


async def _slow_down(proxy: TcpProxy, seconds: float) -> None:
    proxy.delay_seconds += 0.2
    await asyncio.sleep(seconds)
    proxy.delay_seconds -= 0.2


async def _scramble(direction: Mischief, seconds: float) -> None:
    direction.rate = 0.1
    await asyncio.sleep(seconds)
    direction.rate = 0.0


#: By name: the fault itself, how often it is chosen, and how many seconds it lasts.
FAULTS: dict[str, tuple[Inject, int, tuple[float, float]]] = {
    "kill a worker": (lambda cluster, index, _: _kill(cluster.workers[index]), 4, (0, 0)),
    "kill the control plane": (lambda cluster, *_: _kill(cluster.control), 3, (0, 0)),
    "drain a worker": (lambda cluster, index, _: _drain(cluster.workers[index]), 2, (0, 0)),
    "drain the control plane": (lambda cluster, *_: _drain(cluster.control), 1, (0, 0)),
    "freeze a worker": (lambda cluster, index, seconds: cluster.workers[index].freeze(seconds), 2, (2, 6)),
    "freeze the control plane": (lambda cluster, _, seconds: cluster.control.freeze(seconds), 1, (2, 6)),
    "cut a worker's link": (lambda cluster, index, _: _cut(cluster.workers[index].proxy), 3, (0, 0)),
    "cut the clients' links": (lambda cluster, *_: _cut(cluster.control.proxy), 3, (0, 0)),
    "hold a worker's link up": (lambda cluster, index, seconds: _hold(cluster.workers[index].proxy, seconds), 2, (0.2, 4)),
    "hold the clients' links up": (lambda cluster, _, seconds: _hold(cluster.control.proxy, seconds), 2, (0.2, 4)),
    "lose a worker's link": (lambda cluster, index, _: _swallow(cluster.workers[index].proxy), 2, (0, 0)),
    "lose the clients' links": (lambda cluster, *_: _swallow(cluster.control.proxy), 1, (0, 0)),
    "slow a worker's link down": (lambda cluster, index, seconds: _slow_down(cluster.workers[index].proxy, seconds), 1, (1, 3)),
    "repeat, swap and delay steps": (lambda cluster, _, seconds: _scramble(cluster.frames.requests, seconds), 1, (1, 3)),
    "repeat, swap and delay results": (lambda cluster, _, seconds: _scramble(cluster.frames.responses, seconds), 2, (1, 3)),
}


@dataclass(frozen=True)
class Fault:
    """One of FAULTS; `worker` and `seconds` mean something to some of them."""

    pause: float  # before it
    name: str
    worker: int
    seconds: float

    def __str__(self) -> str:
        subject = self.name.replace("a worker", f"worker {self.worker}")
        return f"{subject} for {self.seconds:.1f} s" if self.seconds else subject


def plan(seed: int, count: int) -> list[Fault]:
    """Faults in their order; a longer plan begins like a shorter one."""
    chance = random.Random(seed)
    return [_draw(chance) for _ in range(count)]


def _draw(chance: random.Random) -> Fault:
    (name,) = chance.choices(list(FAULTS), [weight for _, weight, _ in FAULTS.values()])
    return Fault(chance.uniform(0.3, 1.5), name, chance.randrange(NUM_WORKERS), chance.uniform(*FAULTS[name][2]))


async def inject(cluster: Cluster, faults: Sequence[Fault], log: list[str]) -> None:
    """Let it all happen, write it down, and come back when everything is well again."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            await asyncio.sleep(fault.pause)
            log.append(f"{time.monotonic() - began:7.2f} s  {fault}")
            group.create_task(FAULTS[fault.name][0](cluster, fault.worker, fault.seconds))
