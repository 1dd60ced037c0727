"""How many wrong answers a worker is forgiven."""

import pytest

from control_plane.edge.worker_link.fault_budget import FaultBudget, FaultBudgetSpent


def test_three_misfits_are_forgiven_and_the_fourth_is_not():
    faults = FaultBudget("worker-1")
    for _ in range(3):
        faults.misfit("the digests differ")
    with pytest.raises(FaultBudgetSpent, match="given up, as results do not fit: the digests differ"):
        faults.misfit("the digests differ")


def test_second_failed_step_is_one_too_many():
    faults = FaultBudget("worker-1")
    faults.failure("out of memory")
    with pytest.raises(FaultBudgetSpent, match="given up, as steps fail: out of memory"):
        faults.failure("out of memory")


def test_a_frame_that_is_none_spends_the_whole_budget():
    faults = FaultBudget("worker-1")
    faults.breach()
    assert faults.num_breaches == 1
    with pytest.raises(FaultBudgetSpent):
        faults.misfit("the digests differ")
    assert faults.num_breaches == 2


def test_good_results_make_good():
    faults = FaultBudget("worker-1")
    for _ in range(10):
        faults.failure("out of memory")
        for _ in range(210):
            faults.confirm()


def test_after_a_breach_a_single_failure_is_another_one():
    faults = FaultBudget("worker-1")
    faults.failure("a")
    for num_breaches in (1, 2, 3):
        with pytest.raises(FaultBudgetSpent):
            faults.failure("b")
        assert faults.num_breaches == num_breaches
    for _ in range(600):
        faults.confirm()
    assert faults.num_breaches == 0
    faults.failure("c")
