"""Contenders for one lease, with a clock that the test turns."""

import random
from pathlib import Path

import pytest
from fakes.control_plane.lease_store import MemoryLease, MemoryLeaseStore
from hypothesis import given
from hypothesis import strategies as st

from control_plane.edge.lease.file_store import FileLeaseStore
from control_plane.edge.lease.keeper import LeaseKeeper

SECONDS = 6.0


class Contenders:
    """Keepers of one lease in memory."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.lease = MemoryLease()
        self.stores = [MemoryLeaseStore(self.lease) for _ in range(count)]
        self.keepers = [LeaseKeeper(store, f"k{number}", SECONDS, lambda: self.now) for number, store in enumerate(self.stores)]

    def turn(self, *numbers: int) -> None:
        for number in numbers:
            self.keepers[number].turn()
        self.assert_at_most_one()

    def run(self, seconds: float, *numbers: int) -> None:
        """Let some of them live for a while; the others are frozen."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.turn(*numbers)

    @property
    def holders(self) -> list[int]:
        return [number for number, keeper in enumerate(self.keepers) if keeper.is_held]

    def assert_at_most_one(self) -> None:
        assert len(self.holders) <= 1


def test_the_first_one_gets_it_and_keeps_it() -> None:
    three = Contenders(3)
    three.run(100, 1, 0, 2)
    assert three.holders == [1] and three.keepers[0].holder == "k1"


def test_a_frozen_holder_loses_it_for_good() -> None:
    two = Contenders(2)
    two.turn(0, 1)
    two.run(SECONDS - 1, 1)
    assert two.holders == []  # gives it up before anybody may take it
    two.run(2, 1)
    assert two.holders == [1]
    two.run(3 * SECONDS, 0, 1)
    assert two.holders == [1] and two.keepers[0].is_lost and not two.keepers[1].is_lost


def test_a_lost_lease_is_not_taken_again() -> None:
    one = Contenders(1)
    one.turn(0)
    one.now += SECONDS
    one.run(3 * SECONDS, 0)
    assert one.keepers[0].is_lost


def test_a_lease_that_is_given_back_is_free_at_once() -> None:
    two = Contenders(2)
    two.turn(0, 1)
    two.keepers[0].release()
    two.turn(1)
    assert two.holders == [1]


def test_who_holds_nothing_gives_nothing_back() -> None:
    two = Contenders(2)
    two.turn(0, 1)
    two.keepers[1].release()
    two.turn(0, 1)
    assert two.holders == [0]


def test_a_holder_that_does_not_reach_the_lease_gives_it_up_in_time() -> None:
    two = Contenders(2)
    two.turn(0, 1)
    two.stores[0].is_reachable = False
    two.run(2 * SECONDS, 0, 1)
    assert two.holders == [1] and two.keepers[0].is_lost


def test_a_write_whose_answer_is_lost_is_ours_all_the_same() -> None:
    one = Contenders(1)
    one.stores[0].loses_answers = True
    one.turn(0)
    assert one.holders == []
    one.stores[0].loses_answers = False
    one.run(3, 0)
    assert one.holders == [0]
    one.stores[0].loses_answers = True
    one.turn(0)
    one.stores[0].loses_answers = False
    one.run(3 * SECONDS, 0)
    assert one.holders == [0]


def test_a_lease_that_somebody_removes_is_lost() -> None:
    one = Contenders(1)
    one.turn(0)
    one.lease.record = None
    one.turn(0)
    assert one.keepers[0].is_lost


@given(st.integers(0, 2**32))
def test_at_most_one_believes_to_hold_it_whoever_is_frozen_and_when(seed: int) -> None:
    choices = random.Random(seed)
    several = Contenders(choices.randint(2, 4))
    frozen: list[int] = []

    def live(times: int) -> None:
        """Time passes and contenders take turns, some of which are held up in the middle of a write."""
        for _ in range(times):
            several.now += choices.choice((0.0, 0.1, 1.0, 2.0, SECONDS))
            number = choices.choice([number for number in range(len(several.keepers)) if number not in frozen])
            store = several.stores[number]
            store.is_reachable, store.loses_answers = choices.random() < 0.9, choices.random() < 0.1
            if choices.random() < 0.02:
                several.keepers[number].release()
            is_held_up = len(frozen) < len(several.keepers) - 1 and choices.random() < 0.3
            store.meanwhile = (lambda: live(choices.randint(1, 12))) if is_held_up else lambda: None
            frozen.append(number)
            several.turn(number)
            frozen.remove(number)

    live(60)
    for number, store in enumerate(several.stores):
        store.is_reachable, store.loses_answers, store.meanwhile = True, False, lambda: None
        if several.keepers[number].is_lost:
            several.keepers[number] = LeaseKeeper(store, f"again{number}", SECONDS, lambda: several.now)
    several.run(3 * SECONDS, *range(len(several.keepers)))
    assert len(several.holders) == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_same_holds_of_a_file(tmp_path: Path, seed: int) -> None:
    choices, several = random.Random(seed), Contenders(3)
    names = iter(range(1000))
    stores = [FileLeaseStore(tmp_path / "lease", SECONDS, lambda: several.now) for _ in range(3)]
    several.keepers = [LeaseKeeper(store, f"f{next(names)}", SECONDS, lambda: several.now) for store in stores]
    num_taken = 0
    for _ in range(300):
        several.now += choices.choice((0.1, 1.0, 2.0))
        number = choices.choice((0, 0, 0, 1, 1, 2))
        before = several.holders
        several.turn(number)
        num_taken += several.holders == [number] != before
        if several.keepers[number].is_lost:
            several.keepers[number] = LeaseKeeper(stores[number], f"f{next(names)}", SECONDS, lambda: several.now)
    assert num_taken > 5
