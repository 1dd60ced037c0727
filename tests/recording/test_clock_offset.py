"""Two clocks are compared over ways whose length nobody knows."""

import random
from dataclasses import dataclass, field

import pytest

from pypto_serving.profile.v1 import profile_pb2
from pypto_serving.recording.clock_offset import PeerClock

MS = 1_000_000


@dataclass
class World:
    """Two machines: the other one's clock is `offset_ns` behind ours, and slower by `drift`."""

    offset_ns: int = 0
    drift: float = 0.0
    now_ns: int = 10**15
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def ours(self) -> int:
        return self.now_ns

    def theirs(self) -> int:
        return self.now_ns - self.offset_ns - round((self.now_ns - 10**15) * self.drift)

    def exchange(self, here: PeerClock, there: PeerClock, out_ns: int, back_ns: int, pause_ns: int = 100 * MS) -> None:
        """We send, they answer after a while."""
        sent = here.reading()
        self.now_ns += out_ns
        there.heard(sent)
        self.now_ns += pause_ns
        answer = there.reading()
        self.now_ns += back_ns
        here.heard(answer)


def peers(world: World) -> tuple[PeerClock, PeerClock]:
    return PeerClock(world.ours), PeerClock(world.theirs)


@pytest.mark.parametrize("offset_ns", [0, 5 * MS, -5 * MS, 10**14, -(10**12)])
def test_equal_ways_show_the_exact_offset(offset_ns: int) -> None:
    world = World(offset_ns)
    here, there = peers(world)
    world.exchange(here, there, out_ns=MS, back_ns=MS)
    assert here.offset().nanoseconds == offset_ns
    assert here.offset().error_ns == MS


@pytest.mark.parametrize("seed", range(20))
def test_the_error_bounds_what_jitter_does(seed: int) -> None:
    world = World(offset_ns=123 * MS, chance=random.Random(seed))
    here, there = peers(world)
    for _ in range(30):
        world.exchange(here, there, round(world.chance.expovariate(1 / MS)), round(world.chance.expovariate(1 / MS)))
    found = here.offset()
    assert abs(found.nanoseconds - world.offset_ns) <= found.error_ns <= 2 * MS


def test_the_quickest_exchange_counts() -> None:
    world = World(offset_ns=50 * MS)
    here, there = peers(world)
    world.exchange(here, there, out_ns=40 * MS, back_ns=0)
    world.exchange(here, there, out_ns=MS // 10, back_ns=MS // 10)
    world.exchange(here, there, out_ns=0, back_ns=40 * MS)
    assert abs(here.offset().nanoseconds - world.offset_ns) <= MS // 10


def test_clocks_that_go_apart_are_within_the_error() -> None:
    world = World(offset_ns=50 * MS, drift=50e-6)
    here, there = peers(world)
    for _ in range(200):
        world.exchange(here, there, MS, MS, pause_ns=1000 * MS)
    found = here.offset()
    assert abs(world.ours() - (world.theirs() + found.nanoseconds)) <= found.error_ns <= 2 * MS


def test_one_that_may_be_nothing_is_nothing() -> None:
    world = World(offset_ns=0)
    here, there = peers(world)
    world.exchange(here, there, out_ns=3 * MS, back_ns=MS)
    assert here.offset().nanoseconds == 0
    assert here.offset().error_ns >= 2 * MS


def test_nothing_is_known_before_an_answer() -> None:
    world = World()
    here, there = peers(world)
    assert here.offset() is None
    here.heard(there.reading())
    assert here.offset() is None


@pytest.mark.parametrize(
    "clock",
    [
        {"sent_ns": 5, "echoed_ns": 10**16, "echoed_at_ns": 4},  # it echoes what was never sent
        {"sent_ns": 5, "echoed_ns": 10**14, "echoed_at_ns": 6},  # it answers before it hears
        {"sent_ns": 10**18, "echoed_ns": 10**15, "echoed_at_ns": 0},  # it takes longer than there was time
        {},
    ],
)
def test_what_cannot_be_true_is_ignored(clock: dict[str, int]) -> None:
    here, _ = peers(World())
    here.heard(profile_pb2.Clock(**clock))
    assert here.offset() is None
