"""When a worker is given up, told in ticks."""

import pytest

from control_plane.edge.worker_link.options import Backoff
from control_plane.edge.worker_link.watchdog import FaultBudget, FaultBudgetSpent, Watchdog


def _ticks_until_verdict(watchdog: Watchdog, has_work: bool, limit: int = 1000) -> tuple[float, str | None]:
    for count in range(1, limit + 1):
        watchdog.heard() if has_work else None
        verdict = watchdog.tick(watchdog.tick_seconds, has_work)
        if verdict:
            return count * watchdog.tick_seconds, verdict
    return limit * watchdog.tick_seconds, None


def test_silence_of_half_a_lease_is_the_end():
    seconds, verdict = _ticks_until_verdict(Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60), has_work=False)
    assert seconds == pytest.approx(5, abs=0.4)
    assert verdict.startswith("silent")


def test_work_without_progress_is_the_end():
    seconds, verdict = _ticks_until_verdict(Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60), has_work=True)
    assert seconds == pytest.approx(3, abs=0.4)
    assert verdict.startswith("hangs")


def test_slow_layers_buy_time():
    watchdog = Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60)
    watchdog.progressed(1, slowest_unit_us=2_000_000)
    assert _ticks_until_verdict(watchdog, has_work=True)[0] == pytest.approx(20, abs=0.4)


def test_a_worker_that_once_stood_still_is_not_trusted_for_ever():
    watchdog = Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60)
    watchdog.progressed(1, slowest_unit_us=3_600_000_000)
    assert _ticks_until_verdict(watchdog, has_work=True)[0] == pytest.approx(60, abs=0.4)


def test_progress_and_answers_start_the_count_again():
    watchdog = Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60)
    for progress in range(100):
        watchdog.heard()
        assert watchdog.tick(0.5, has_work=True) is None
        watchdog.progressed(progress // 2, 1000)
        if progress > 50:
            watchdog.answered()


def test_idle_worker_does_not_hang():
    watchdog = Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60)
    for _ in range(1000):
        watchdog.heard()
        assert watchdog.tick(watchdog.tick_seconds, has_work=False) is None


def test_pause_of_our_own_loop_is_not_held_against_the_worker():
    watchdog = Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60)
    assert watchdog.tick(3600, has_work=True) is None


def test_pauses_grow_to_their_limit():
    backoff = Backoff(0.02, 1.0)
    assert backoff.pause(0) == 0
    assert 0.015 <= backoff.pause(1) <= 0.02
    assert 0.03 <= backoff.pause(2) <= 0.04
    assert 0.75 <= backoff.pause(10_000) <= 1.0


def test_a_kernel_that_is_being_compiled_is_no_hang_for_ten_minutes():
    watchdog = Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60)
    watchdog.progressed(1, slowest_unit_us=0, is_compiling=True)
    seconds, verdict = _ticks_until_verdict(watchdog, has_work=True, limit=3000)
    assert seconds == pytest.approx(603, abs=1) and verdict.startswith("hangs")


def test_what_hangs_after_a_compilation_is_noticed_as_soon_as_ever():
    watchdog = Watchdog(lease_seconds=10, min_hang_seconds=3, max_hang_seconds=60)
    watchdog.progressed(1, slowest_unit_us=0, is_compiling=True)
    assert _ticks_until_verdict(watchdog, has_work=True, limit=100)[1] is None
    watchdog.progressed(1, slowest_unit_us=0)
    assert _ticks_until_verdict(watchdog, has_work=True)[0] == pytest.approx(3, abs=0.4)


# The fault budget


def test_three_wrong_results_are_forgiven_and_the_fourth_is_not():
    faults = FaultBudget("worker-1")
    for _ in range(3):
        faults.count_wrong_result("the digests differ")
    with pytest.raises(FaultBudgetSpent, match="given up, as results do not fit: the digests differ"):
        faults.count_wrong_result("the digests differ")


def test_second_failed_step_is_one_too_many():
    faults = FaultBudget("worker-1")
    faults.count_failed_step("out of memory")
    with pytest.raises(FaultBudgetSpent, match="given up, as steps fail: out of memory"):
        faults.count_failed_step("out of memory")


def test_a_frame_that_is_none_spends_the_whole_budget():
    faults = FaultBudget("worker-1")
    faults.exhaust()
    assert faults.num_exhaustions == 1
    with pytest.raises(FaultBudgetSpent):
        faults.count_wrong_result("the digests differ")
    assert faults.num_exhaustions == 2


def test_good_results_make_good():
    faults = FaultBudget("worker-1")
    for _ in range(10):
        faults.count_failed_step("out of memory")
        for _ in range(210):
            faults.count_good_result()


def test_after_a_breach_a_single_failure_is_another_one():
    faults = FaultBudget("worker-1")
    faults.count_failed_step("a")
    for num_exhaustions in (1, 2, 3):
        with pytest.raises(FaultBudgetSpent):
            faults.count_failed_step("b")
        assert faults.num_exhaustions == num_exhaustions
    for _ in range(600):
        faults.count_good_result()
    assert faults.num_exhaustions == 0
    faults.count_failed_step("c")
