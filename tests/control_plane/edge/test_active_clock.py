"""A clock that does not count for how long the process stood still."""

from control_plane.edge.active_clock import ActiveClock


class _Steady:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_passes_while_the_process_moves():
    steady = _Steady()
    clock = ActiveClock(steady)
    began = clock()
    for _ in range(8):
        steady.now += 0.25
        clock.beat()
    steady.now += 0.125
    assert clock() - began == 2.125


def test_a_stop_counts_for_no_more_than_a_second():
    steady = _Steady()
    clock = ActiveClock(steady)
    began = clock()
    steady.now += 3600.0
    assert clock() - began == 1.0
    clock.beat()
    steady.now += 0.5
    assert clock() - began == 1.5
