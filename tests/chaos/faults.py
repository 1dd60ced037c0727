"""What goes wrong, and when: a plan that depends on its seed only, and its execution."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from chaos.cluster import Cluster
from chaos.control_planes import ControlPlane, OneProcess, StandingBy, Supervised
from chaos.frame_proxy import Mischief
from chaos.supervised_process import SupervisedProcess
from fakes.network.tcp_proxy import TcpProxy

#: Takes the cluster, which of several processes of a kind it is about, and how many seconds it lasts.
Inject = Callable[[Cluster, int, float], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """A kind of fault; `ends_calls`: a client needs our library to notice nothing of it."""

    inject: Inject
    weight: int  # how often it is chosen
    seconds: tuple[float, float] = (0, 0)  # that it lasts
    ends_calls: bool = False


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


WORKERS = {
    "kill a worker": Kind(lambda cluster, index, _: _kill(cluster.workers[index]), 4),
    "drain a worker": Kind(lambda cluster, index, _: _drain(cluster.workers[index]), 2),
    "freeze a worker": Kind(lambda cluster, index, seconds: cluster.workers[index].freeze(seconds), 2, (2, 6)),
    "cut a worker's link": Kind(lambda cluster, index, _: _cut(cluster.workers[index].proxy), 3),
    "hold a worker's link up": Kind(lambda cluster, index, seconds: _hold(cluster.workers[index].proxy, seconds), 2, (0.2, 4)),
    "lose a worker's link": Kind(lambda cluster, index, _: _swallow(cluster.workers[index].proxy), 2),
    "slow a worker's link down": Kind(lambda cluster, index, seconds: _slow_down(cluster.workers[index].proxy, seconds), 1, (1, 3)),
    "repeat, swap and delay steps": Kind(lambda cluster, _, seconds: _scramble(cluster.frames.requests, seconds), 1, (1, 3)),
    "repeat, swap and delay results": Kind(lambda cluster, _, seconds: _scramble(cluster.frames.responses, seconds), 2, (1, 3)),
}

CLIENTS = {
    "cut the clients' links": Kind(lambda cluster, index, _: _cut(_link(cluster, index)), 3, ends_calls=True),
    "hold the clients' links up": Kind(lambda cluster, index, seconds: _hold(_link(cluster, index), seconds), 2, (0.2, 4)),
    "lose the clients' links": Kind(lambda cluster, index, _: _swallow(_link(cluster, index)), 1, ends_calls=True),
}

ONE_PROCESS = (
    WORKERS
    | CLIENTS
    | {
        "kill the control plane": Kind(lambda cluster, *_: _kill(_whole(cluster).process), 3, ends_calls=True),
        "drain the control plane": Kind(lambda cluster, *_: _drain(_whole(cluster).process), 1, ends_calls=True),
        "freeze the control plane": Kind(lambda cluster, _, seconds: _whole(cluster).process.freeze(seconds), 1, (2, 6)),
    }
)

SUPERVISED = (
    WORKERS
    | CLIENTS
    | {
        "kill the scheduler": Kind(lambda cluster, *_: _signal(cluster, "scheduler", signal.SIGKILL), 4),
        "drain the scheduler": Kind(lambda cluster, *_: _signal(cluster, "scheduler", signal.SIGTERM), 1),
        "freeze the scheduler": Kind(lambda cluster, _, seconds: _parts(cluster).freeze("scheduler", seconds), 2, (2, 6)),
        "kill the scheduler and, when it is back or not yet, again": Kind(
            lambda cluster, _, seconds: _kill_twice(cluster, seconds), 2, (0.1, 4)
        ),
        "kill a front end": Kind(lambda cluster, index, _: _signal(cluster, str(index), signal.SIGKILL), 3, ends_calls=True),
        "freeze a front end": Kind(lambda cluster, index, seconds: _parts(cluster).freeze(str(index), seconds), 2, (2, 6)),
        "kill the scheduler and a front end": Kind(lambda cluster, index, _: _kill_both(cluster, index), 1, ends_calls=True),
        "kill the control plane": Kind(lambda cluster, *_: _parts(cluster).kill_all(), 1, ends_calls=True),
        "drain the control plane": Kind(lambda cluster, *_: _drain(_parts(cluster).process), 1, ends_calls=True),
    }
)

STANDING_BY = (
    WORKERS
    | CLIENTS
    | {
        "kill the scheduler in charge": Kind(lambda cluster, *_: _kill(_standing_by(cluster).in_charge), 4),
        "drain the scheduler in charge": Kind(lambda cluster, *_: _drain(_standing_by(cluster).in_charge), 2),
        "freeze the scheduler in charge": Kind(lambda cluster, _, seconds: _standing_by(cluster).in_charge.freeze(seconds), 3, (0.5, 5)),
        "kill a scheduler": Kind(lambda cluster, index, _: _kill(_standing_by(cluster).schedulers[index]), 2),
        "cut a scheduler's links": Kind(lambda cluster, index, _: _cut(_standing_by(cluster).schedulers[index].proxy), 2),
        "lose a scheduler's links": Kind(lambda cluster, index, _: _swallow(_standing_by(cluster).schedulers[index].proxy), 1),
        "hold a scheduler's links up": Kind(
            lambda cluster, index, seconds: _hold(_standing_by(cluster).schedulers[index].proxy, seconds), 1, (0.2, 7)
        ),
        "kill a front end": Kind(lambda cluster, index, _: _kill(_standing_by(cluster).front_ends[index]), 2, ends_calls=True),
        "drain a front end": Kind(lambda cluster, index, _: _drain(_standing_by(cluster).front_ends[index]), 1, ends_calls=True),
        "freeze a front end": Kind(lambda cluster, index, seconds: _standing_by(cluster).front_ends[index].freeze(seconds), 1, (2, 6)),
    }
)

#: What happens to a cluster in each form of its control plane.
KINDS: dict[type[ControlPlane], dict[str, Kind]] = {OneProcess: ONE_PROCESS, Supervised: SUPERVISED, StandingBy: STANDING_BY}


@dataclass(frozen=True)
class Fault:
    """One of a kind; `index` and `seconds` mean something to some kinds."""

    pause: float  # before it
    name: str
    kind: Kind
    index: int
    seconds: float

    def __str__(self) -> str:
        subject = self.name.replace("a worker", f"worker {self.index}").replace("a front end", f"front end {self.index}")
        subject = subject.replace("a scheduler", f"scheduler {self.index}")
        return f"{subject} for {self.seconds:.1f} s" if self.seconds else subject


def plan(seed: int, count: int, kinds: Mapping[str, Kind]) -> list[Fault]:
    """Faults in their order; a longer plan begins like a shorter one."""
    chance = random.Random(seed)
    return [_draw(chance, kinds) for _ in range(count)]


def _draw(chance: random.Random, kinds: Mapping[str, Kind]) -> Fault:
    (name,) = chance.choices(list(kinds), [kind.weight for kind in kinds.values()])
    return Fault(chance.uniform(0.2, 1.0), name, kinds[name], chance.randrange(2), chance.uniform(*kinds[name].seconds))


async def inject(cluster: Cluster, faults: Sequence[Fault], log: list[str]) -> None:
    """Let it all happen, write it down, and come back when everything is well again."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            await asyncio.sleep(fault.pause)
            log.append(f"{time.monotonic() - began:7.2f} s  {fault}")
            group.create_task(fault.kind.inject(cluster, fault.index, fault.seconds))


def _link(cluster: Cluster, index: int) -> TcpProxy:
    return cluster.control.proxies[index % len(cluster.control.proxies)]


def _whole(cluster: Cluster) -> OneProcess:
    assert isinstance(cluster.control, OneProcess)
    return cluster.control


def _parts(cluster: Cluster) -> Supervised:
    assert isinstance(cluster.control, Supervised)
    return cluster.control


def _standing_by(cluster: Cluster) -> StandingBy:
    assert isinstance(cluster.control, StandingBy)
    return cluster.control


async def _signal(cluster: Cluster, part: str, number: signal.Signals) -> None:
    _parts(cluster).send(part, number)


async def _kill_twice(cluster: Cluster, seconds: float) -> None:
    await _signal(cluster, "scheduler", signal.SIGKILL)
    await asyncio.sleep(seconds)
    await _signal(cluster, "scheduler", signal.SIGKILL)


async def _kill_both(cluster: Cluster, index: int) -> None:
    await _signal(cluster, "scheduler", signal.SIGKILL)
    await _signal(cluster, str(index), signal.SIGKILL)
