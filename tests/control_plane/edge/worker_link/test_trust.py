"""How many wrong answers a worker is forgiven."""

import pytest

from control_plane.edge.worker_link.trust import Trust, WorkerDistrusted


def test_three_misfits_are_forgiven_and_the_fourth_is_not():
    trust = Trust("worker-1")
    for _ in range(3):
        trust.misfit("the digests differ")
    with pytest.raises(WorkerDistrusted, match="given up, as results do not fit: the digests differ"):
        trust.misfit("the digests differ")


def test_second_failed_step_is_one_too_many():
    trust = Trust("worker-1")
    trust.failure("out of memory")
    with pytest.raises(WorkerDistrusted, match="given up, as steps fail: out of memory"):
        trust.failure("out of memory")


def test_a_frame_that_is_none_leaves_no_trust():
    trust = Trust("worker-1")
    trust.breach()
    assert trust.num_breaches == 1
    with pytest.raises(WorkerDistrusted):
        trust.misfit("the digests differ")
    assert trust.num_breaches == 2


def test_good_results_make_good():
    trust = Trust("worker-1")
    for _ in range(10):
        trust.failure("out of memory")
        for _ in range(210):
            trust.confirm()


def test_after_a_breach_a_single_failure_is_another_one():
    trust = Trust("worker-1")
    trust.failure("a")
    for num_breaches in (1, 2, 3):
        with pytest.raises(WorkerDistrusted):
            trust.failure("b")
        assert trust.num_breaches == num_breaches
    for _ in range(600):
        trust.confirm()
    assert trust.num_breaches == 0
    trust.failure("c")
