import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.service.session import Grant, LeaseHeldError, Session, SessionRequest, SessionState, StepOrderError

LEASE = 10.0


def make_session() -> Session[str]:
    return Session("worker-1", LEASE, max_steps_in_flight=2)


def resume(name: str = "a", acked: int = 0) -> SessionRequest:
    return SessionRequest(name, resume_incarnation="worker-1", acked_step_id=acked)


def run_step(session: Session[str], step_id: int, acked: int = 0) -> None:
    session.accept_step(step_id, acked, released=(), admitted=())
    assert session.finish_step(session.era, step_id, f"result {step_id}")


def test_first_owner_gets_epoch_one_and_a_fresh_session() -> None:
    assert make_session().open(SessionRequest("a"), now=0.0) == Grant(stream=1, epoch=1, resumed=False, last_step_id=0, unseen=())


def test_another_control_plane_is_refused_while_the_stream_is_open() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    session.renew_lease(now=3.0)
    with pytest.raises(LeaseHeldError, match=r"held by control plane a, whose lease runs for another 8\.0 s"):
        session.open(SessionRequest("b"), now=5.0)
    assert session.epoch == 1


def test_takeover_forces_a_new_epoch() -> None:
    session = make_session()
    old = session.open(SessionRequest("a"), now=0.0)
    new = session.open(SessionRequest("b", takeover=True), now=1.0)
    assert (new.epoch, new.resumed) == (2, False)
    session.close(old.stream, now=1.0)
    assert session.state is SessionState.CONNECTED
    session.close(new.stream, now=1.0)
    assert session.state is SessionState.DETACHED


def test_a_broken_connection_is_kept_for_its_owner_for_half_a_lease() -> None:
    session = make_session()
    session.close(session.open(SessionRequest("a"), now=0.0).stream, now=1.0)
    for now, left in ((1.0, r"5\.0"), (5.9, r"0\.1")):
        with pytest.raises(LeaseHeldError, match=rf"kept for control plane a, whose connection broke, for another {left} s"):
            session.open(SessionRequest("b"), now)
    assert session.open(resume("a"), now=5.9).resumed
    session.close(2, now=6.0)
    assert session.open(SessionRequest("b"), now=11.0).epoch == 2


def test_it_is_kept_no_longer_than_the_lease() -> None:
    session = make_session()
    session.close(session.open(SessionRequest("a"), now=0.0).stream, now=9.0)
    with pytest.raises(LeaseHeldError, match=r"for another 0\.5 s") as held:
        session.open(SessionRequest("b"), now=9.5)
    assert held.value.seconds == pytest.approx(0.5)
    assert session.open(SessionRequest("b"), now=10.0).epoch == 2


def test_after_a_farewell_and_for_a_takeover_it_is_free_at_once() -> None:
    session = make_session()
    session.close(session.open(SessionRequest("a"), now=0.0).stream, now=1.0, is_farewell=True)
    second = session.open(SessionRequest("b"), now=1.0)
    session.close(second.stream, now=1.0)
    assert (second.epoch, session.open(SessionRequest("c", takeover=True), now=1.0).epoch) == (2, 3)


def test_a_farewell_leaves_nothing_of_the_owner() -> None:
    session = make_session()
    stream = session.open(SessionRequest("a"), now=0.0).stream
    run_step(session, 1)
    session.accept_step(2, 1, (), admitted=(0,))
    era = session.era
    session.close(stream, now=1.0, is_farewell=True)
    assert (session.state, session.owner, session.num_lanes, session.num_steps_in_flight) == (SessionState.FREE, "", 0, 0)
    assert not session.finish_step(era, 2, "late")
    assert not session.expire(LEASE)
    grant = session.open(resume(acked=1), now=LEASE)
    assert (grant.resumed, grant.last_step_id, grant.unseen) == (False, 0, ())


def test_a_farewell_on_a_stream_that_was_replaced_means_nothing() -> None:
    session = make_session()
    old = session.open(SessionRequest("a"), now=0.0)
    session.open(SessionRequest("b", takeover=True), now=1.0)
    session.accept_step(1, 0, (), admitted=(0,))
    session.close(old.stream, now=2.0, is_farewell=True)
    assert (session.owner, session.num_lanes) == ("b", 1)


def test_a_worker_is_orphaned_when_nobody_came_for_a_lease() -> None:
    session = make_session()
    assert not session.is_orphaned(LEASE)  # nobody ever had it
    session.close(session.open(SessionRequest("a"), now=0.0).stream, now=1.0, is_farewell=True)
    assert not session.is_orphaned(LEASE - 0.1) and session.is_orphaned(LEASE)
    session.open(SessionRequest("b"), now=LEASE)
    assert not session.is_orphaned(2 * LEASE)  # before `expire`
    assert session.expire(2 * LEASE) and session.is_orphaned(2 * LEASE)


def test_another_control_plane_is_accepted_once_the_lease_ran_out() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    assert session.open(SessionRequest("b"), now=LEASE).epoch == 2


def test_same_control_plane_keeps_its_epoch_and_replaces_its_stream() -> None:
    session = make_session()
    old = session.open(SessionRequest("a"), now=0.0)
    new = session.open(SessionRequest("a"), now=1.0)
    assert (new.epoch, new.resumed) == (1, False)
    session.close(old.stream, now=1.0)
    assert session.state is SessionState.CONNECTED


def test_resume_brings_the_results_not_yet_seen() -> None:
    session = make_session()
    stream = session.open(SessionRequest("a"), now=0.0).stream
    run_step(session, 1)
    session.accept_step(2, 0, (), ())
    session.close(stream, now=0.5)
    assert session.finish_step(session.era, 2, "result 2")
    grant = session.open(resume(acked=1), now=1.0)
    assert (grant.resumed, grant.last_step_id, grant.unseen) == (True, 2, ("result 2",))


def test_results_after_a_resume_continue() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    session.accept_step(1, 0, (), ())
    era = session.era
    session.open(resume(), now=1.0)
    assert session.finish_step(era, 1, "result 1")


@pytest.mark.parametrize(
    "session_request",
    [
        SessionRequest("a"),
        SessionRequest("a", resume_incarnation="worker-0", acked_step_id=1),
        resume(acked=2),
        resume("b", acked=1),
        resume(acked=0),
    ],
)
def test_anything_else_than_a_matching_resume_starts_from_nothing(session_request: SessionRequest) -> None:
    session = make_session()
    session.close(session.open(SessionRequest("a"), now=0.0).stream, now=0.0)
    run_step(session, 1)
    session.accept_step(2, 1, (), admitted=(3,))
    grant = session.open(session_request, now=LEASE / 2)
    assert (grant.resumed, grant.last_step_id, grant.unseen, session.num_lanes) == (False, 0, (), 0)


def test_no_resume_after_the_lease() -> None:
    session = make_session()
    session.close(session.open(SessionRequest("a"), now=0.0).stream, now=0.0)
    grant = session.open(resume(), now=LEASE)
    assert (grant.resumed, grant.epoch) == (False, 1)


def test_lease_forgets_the_owner_once() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    session.accept_step(1, 0, (), admitted=(0,))
    era = session.era
    assert not session.expire(LEASE - 0.1)
    assert session.expire(LEASE) and not session.expire(LEASE)
    assert (session.state, session.num_lanes, session.num_steps_in_flight) == (SessionState.FREE, 0, 0)
    assert not session.finish_step(era, 1, "late")


@pytest.mark.parametrize("step_id", [1, 3])
def test_repeated_and_skipped_steps_are_refused(step_id: int) -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    run_step(session, 1)
    with pytest.raises(StepOrderError, match="the next step is 2"):
        session.accept_step(step_id, 0, (), ())
    assert session.last_step_id == 1


def test_more_steps_in_flight_than_granted_are_refused() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    run_step(session, 1)
    session.accept_step(2, 0, (), ())
    with pytest.raises(StepOrderError, match="makes 3 steps in flight, limit 2"):
        session.accept_step(3, 0, (), ())
    session.accept_step(3, 1, (), ())


def test_acknowledging_what_was_not_answered_is_refused() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    session.accept_step(1, 0, (), ())
    with pytest.raises(StepOrderError, match="acked_step_id: 1 is above 0"):
        session.accept_step(2, 1, (), ())


def test_reset_drops_results_of_earlier_steps_and_goes_on_counting() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    session.accept_step(1, 0, (), admitted=(0, 1))
    era = session.era
    session.reset()
    assert not session.finish_step(era, 1, "late")
    assert (session.last_step_id, session.num_lanes, session.num_steps_in_flight) == (1, 0, 0)
    with pytest.raises(StepOrderError, match="1 is not above 1"):
        session.accept_step(1, 0, (), ())
    run_step(session, 2, acked=1)


def test_first_step_after_a_reset_may_leave_a_gap() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    session.reset()
    run_step(session, 5, acked=4)
    run_step(session, 6, acked=5)


def test_reset_whose_answer_may_be_lost_is_not_resumed() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    run_step(session, 1)
    session.reset()
    assert not session.open(resume(acked=1), now=1.0).resumed


def test_lanes_follow_admissions_and_releases() -> None:
    session = make_session()
    session.open(SessionRequest("a"), now=0.0)
    session.accept_step(1, 0, released=(), admitted=(4, 5))
    session.accept_step(2, 0, released=(4,), admitted=(4, 6))
    assert session.num_lanes == 3


class SessionMachine(RuleBasedStateMachine):
    """One worker, three control planes that behave in every order of events; a model of what each may see."""

    def __init__(self) -> None:
        super().__init__()
        self.session = make_session()
        self.now = self.kept_until = 0.0
        self.stream, self.owner, self.epochs = 0, "", [0]
        self.seen: list[int] = []  # results that reached the owner in this life of the session
        self.running: list[tuple[int, int]] = []  # (era, step) on the device

    @rule(name=st.sampled_from("abc"), takeover=st.booleans(), wants_resume=st.booleans())
    def handshake(self, name: str, takeover: bool, wants_resume: bool) -> None:
        acked = max(self.seen, default=0) if name == self.owner else 0
        session_request = SessionRequest(name, takeover, "worker-1" if wants_resume else "", acked)
        try:
            grant = self.session.open(session_request, self.now)
        except LeaseHeldError:
            assert (self.stream or self.now < self.kept_until) and name != self.owner and not takeover
            return
        assert takeover or name == self.owner or (not self.stream and self.now >= self.kept_until)
        assert grant.epoch == self.epochs[-1] + (name != self.owner)
        if grant.resumed:
            assert name == self.owner and wants_resume
            self.seen.extend(int(result) for result in grant.unseen)
        else:
            assert grant.unseen == () and grant.last_step_id == 0
            self.seen = []
        self.epochs.append(grant.epoch)
        self.stream, self.owner, self.kept_until = grant.stream, name, self.now

    @precondition(lambda self: self.stream)
    @rule()
    def step(self) -> None:
        step_id, acked = self.session.last_step_id + 1, max(self.seen, default=0)
        try:
            self.session.accept_step(step_id, acked, (), (step_id % 5,))
        except StepOrderError:
            assert step_id - acked > 2
            return
        self.running.append((self.session.era, step_id))

    @precondition(lambda self: self.running)
    @rule()
    def finish(self) -> None:
        era, step_id = self.running.pop(0)
        kept = self.session.finish_step(era, step_id, str(step_id))
        assert kept == (era == self.session.era)
        if kept and self.stream:
            self.seen.append(step_id)

    @precondition(lambda self: self.stream)
    @rule()
    def reset(self) -> None:
        self.session.reset()
        self.seen = [self.session.last_step_id] if self.session.last_step_id else []

    @precondition(lambda self: self.stream)
    @rule(is_farewell=st.booleans())
    def cut(self, is_farewell: bool) -> None:
        self.session.close(self.stream, self.now, is_farewell)
        self.stream, self.kept_until = 0, self.now if is_farewell else self.now + LEASE / 2
        if is_farewell:
            assert (self.session.state, self.session.num_lanes, self.session.num_steps_in_flight) == (SessionState.FREE, 0, 0)
            self.seen = []

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]), is_heard=st.booleans())
    def wait(self, seconds: float, is_heard: bool) -> None:
        self.now += seconds
        if self.session.expire(self.now):
            self.stream, self.seen, self.kept_until = 0, [], 0.0
        elif is_heard and self.stream:
            self.session.renew_lease(self.now)

    @invariant()
    def results_come_once_and_in_order(self) -> None:
        assert self.seen == sorted(set(self.seen))

    @invariant()
    def little_is_kept(self) -> None:
        assert 0 <= self.session.num_steps_in_flight <= 2

    @invariant()
    def epochs_never_fall(self) -> None:
        assert self.epochs == sorted(self.epochs)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
