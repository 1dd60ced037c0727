import grpc
import pytest

from clients.errors import ResumeExhausted, ServerUnreachable, ServingError
from clients.reconnection import Attempts, RetryLimits, Targets

LOST = ServingError(grpc.StatusCode.UNAVAILABLE, "socket closed")


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def attempts(targets="a", timeout=None, clock=None, **limits):
    return Attempts(Targets(targets), RetryLimits(**limits), timeout, clock or Clock(), jitter=lambda: 1.0)


def test_broken_stream_is_tried_at_once_at_the_same_address():
    tries = attempts(["a", "b"])
    tries.progressed()
    assert (tries.delay_after(LOST, 3), tries.target) == (0.0, "a")


def test_other_addresses_follow_without_delay_then_pauses_double_up_to_a_second():
    tries = attempts(["a", "b"], resume_seconds=1000)
    tries.progressed()
    tries.delay_after(LOST, 3)
    seen = []
    for _ in range(10):
        delay = tries.delay_after(LOST, 3)
        seen.append((tries.target, delay))
    assert seen == [(t, d) for d in (0.1, 0.2, 0.4, 0.8, 1.0) for t, d in (("b", 0.0), ("a", d))]


def test_patience_runs_from_the_break_and_anew_after_progress():
    clock = Clock()
    tries = attempts(clock=clock, resume_seconds=10)
    for _ in range(3):
        tries.progressed()
        clock.now += 1000
        tries.delay_after(LOST, 1)
        clock.now += 9.5
        tries.delay_after(LOST, 1)
    clock.now += 0.5
    with pytest.raises(ResumeExhausted, match="resume_seconds=10"):
        tries.delay_after(LOST, 1)


def test_patience_of_zero_means_no_second_try():
    tries = attempts(resume_seconds=0, connect_seconds=0)
    with pytest.raises(ServerUnreachable):
        tries.delay_after(LOST)
    tries.progressed()
    with pytest.raises(ResumeExhausted):
        tries.delay_after(LOST, 1)


def test_slow_refusal_counts_against_the_connect_budget():
    clock = Clock()
    tries = attempts(clock=clock, connect_seconds=5)
    clock.now += 30
    with pytest.raises(ServerUnreachable, match="no answer from a within connect_seconds=5: socket closed"):
        tries.delay_after(LOST)


def test_timeout_ends_the_attempts():
    clock = Clock()
    tries = attempts(timeout=2.0, clock=clock)
    tries.progressed()
    clock.now += 1.5
    assert tries.remaining_seconds() == 0.5
    tries.delay_after(LOST, 1)
    clock.now += 0.45
    with pytest.raises(ServingError, match="timeout=2: last failure: socket closed") as caught:
        tries.delay_after(LOST, 1)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_servers_wish_for_a_later_return_is_respected():
    tries = attempts()
    tries.progressed()
    busy = ServingError(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", retry_after_seconds=3.0)
    assert tries.delay_after(busy, 1) == 3.0


def test_an_id_that_an_earlier_attempt_may_have_taken_is_tried_again():
    taken = ServingError(grpc.StatusCode.ALREADY_EXISTS, "request_id 'x' is in use by a live request")
    with pytest.raises(ServingError, match="in use"):
        attempts().delay_after(taken)
    tries = attempts()
    tries.delay_after(LOST)
    assert tries.delay_after(taken) == 0.2


def test_an_id_that_stays_taken_is_told_as_it_is():
    clock = Clock()
    taken = ServingError(grpc.StatusCode.ALREADY_EXISTS, "request_id 'x' is in use by a live request")
    tries = attempts(clock=clock, connect_seconds=5)
    tries.delay_after(LOST)
    clock.now += 5
    with pytest.raises(ServingError) as caught:
        tries.delay_after(taken)
    assert caught.value is taken


@pytest.mark.parametrize("name", ["connect_seconds", "resume_seconds"])
@pytest.mark.parametrize("seconds", [-1, float("nan"), "5"])
def test_patience_that_is_no_time_is_refused(name, seconds):
    with pytest.raises(ServingError, match=f"{name}: {seconds!r}"):
        RetryLimits(**{name: seconds})


@pytest.mark.parametrize("targets", [[], [""], "a\udcff", ["a", "b\n"]])
def test_targets_that_are_none_are_refused(targets):
    with pytest.raises(ServingError, match="targets: "):
        Targets(targets)
