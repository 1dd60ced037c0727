"""Several front ends of one engine: whose requests are whose, and what becomes of them."""

import pytest
from fakes.control_plane.engine_doubles import Bench, RecordingFrontEnd, RecordingMetrics, make_choice, make_request
from fakes.worker.strict_worker import StrictWorker, describe, solo

from control_plane.core.scheduler import Scheduler
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure, FinishReason

PROMPT = (1, 2, 3)
EXPECTED = solo(PROMPT, 20)


def bench_with_two(**options) -> tuple[Bench, RecordingFrontEnd]:
    """A bench whose own front end has a request `r` under way, and another front end."""
    bench = Bench(**options)
    bench.submit(max_tokens=20)
    bench.run(4)
    return bench, RecordingFrontEnd()


def test_an_id_is_one_requests_among_all_front_ends():
    bench, other = bench_with_two()
    bench.submit(front_end=other)
    bench.run()
    assert other.failed["r"].failure is Failure.ALREADY_EXISTS
    assert bench.front_end.output_of("r") == EXPECTED


def test_a_resume_with_the_key_takes_a_request_over_from_another_front_end():
    bench, other = bench_with_two()
    bench.submit(front_end=other, max_tokens=20, resumed=EXPECTED[:2], takes_over=True)
    bench.run()
    failed = bench.front_end.failed["r"]
    assert (failed.failure, failed.message) == (Failure.CANCELLED, "request taken over by a resume")
    assert other.output_of("r") == EXPECTED[2:]
    assert not other.failed
    bench.assert_at_rest()


def test_what_came_earlier_takes_nothing_over():
    """As when a front end stood still, and meanwhile the client has gone on at another one."""
    bench, other = bench_with_two()
    bench.submit(front_end=other, max_tokens=20, resumed=EXPECTED[:2], takes_over=True, arrival_time=101.0)
    bench.run(2)
    bench.front_end.forget()
    bench.submit(max_tokens=20, resumed=EXPECTED[:3], takes_over=True, was_accepted=True, arrival_time=100.0)
    bench.run()
    failed = bench.front_end.failed["r"]
    assert (failed.failure, failed.message) == (Failure.CANCELLED, "request taken over by a resume")
    assert other.output_of("r") == EXPECTED[2:]


def test_a_resume_with_another_key_takes_nothing_over():
    bench, other = bench_with_two()
    bench.submit(front_end=other, max_tokens=20, takes_over=True, resume_key=b"guessed")
    bench.run()
    assert other.failed["r"].failure is Failure.ALREADY_EXISTS
    assert bench.front_end.output_of("r") == EXPECTED


def test_numbers_are_of_one_front_end():
    bench, other, choice = Bench(), RecordingFrontEnd(), make_choice()
    bench.submit("mine", PROMPT, choices=[choice], max_tokens=20)
    bench.submit("theirs", (7, 8), front_end=other, choices=[choice], max_tokens=20)
    bench.run(4)
    bench.engine.finish(other, choice.number)
    bench.run()
    assert bench.front_end.output_of("mine") == EXPECTED
    assert other.finished["theirs", 0].reason is FinishReason.STOP


def test_what_a_front_end_says_of_the_request_of_another_is_ignored():
    bench, other = bench_with_two()
    bench.engine.end(other, "r", Failure.CANCELLED, "not its own")
    bench.engine.hold(other, "r")
    bench.hold("r")
    bench.engine.unhold(other, "r")
    bench.run()
    assert bench.engine.state().snapshot.num_held == 1
    bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


def test_an_abort_finds_the_request_of_any_front_end():
    bench, other = bench_with_two()
    bench.submit("theirs", front_end=other, max_tokens=20)
    assert bench.engine.abort("theirs")
    bench.turn()
    assert not bench.engine.abort("theirs")
    assert other.failed["theirs"].failure is Failure.CANCELLED
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


@pytest.mark.parametrize("rounds", range(6))
def test_a_closed_front_end_leaves_nothing_but_cached_pages(rounds):
    bench, other = Bench(max_step_tokens=8), RecordingFrontEnd()
    bench.submit(max_tokens=20)
    for index in range(3):
        choices = [make_choice(choice) for choice in range(index + 1)]
        bench.submit(f"theirs{index}", tuple(range(10 + index)), front_end=other, choices=choices, max_tokens=30)
    bench.run(rounds)
    bench.engine.hold(other, "theirs1")
    told = {name: list(tokens) for name, tokens in other.tokens.items()}
    bench.engine.close_front_end(other)
    bench.run()
    assert (other.tokens, other.finished, other.failed) == (told, {}, {})
    assert bench.front_end.output_of("r") == EXPECTED
    assert bench.metrics.total("failed") == [Failure.CANCELLED] * 3
    bench.assert_at_rest()


def test_what_a_closed_front_end_had_can_be_submitted_by_its_successor():
    bench, successor = bench_with_two()
    told = bench.front_end.output_of("r")
    bench.engine.close_front_end(bench.front_end)
    bench.submit(front_end=successor, max_tokens=20, resumed=told, numerics_id="fake", takes_over=True, was_accepted=True)
    bench.run()
    assert told + successor.output_of("r") == EXPECTED
    assert not (successor.failed or bench.front_end.failed)


def test_a_drain_is_of_one_front_end():
    bench, other = bench_with_two()
    bench.engine.drain(other)
    bench.submit("theirs", front_end=other)
    bench.submit("mine")
    bench.run()
    assert other.failed["theirs"].failure is Failure.UNAVAILABLE
    assert bench.front_end.output_of("mine") == EXPECTED[:8]


def test_a_front_end_that_fails_does_not_trouble_the_others(monkeypatch):
    bench, other = bench_with_two()
    bench.submit("theirs", front_end=other)
    with monkeypatch.context() as patch:
        patch.setattr(other, "publish", lambda outputs: 1 / 0)
        bench.engine.turn()
    assert not bench.engine.snapshot.healthy
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


def accepted_before(bench: Bench, name: str = "old", num: int = 3, **changes) -> None:
    """Submit what an engine that is gone had accepted, with the tokens that it made."""
    bench.submit(name, PROMPT, resumed=solo(PROMPT, num), **{"numerics_id": "fake", "takes_over": True, "was_accepted": True, **changes})


def test_a_full_queue_refuses_nothing_that_was_accepted_before():
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_requests=2))
    for index in range(20):
        accepted_before(bench, f"old{index}")
    bench.run()
    assert [bench.front_end.output_of(f"old{index}") for index in range(20)] == [solo(PROMPT, 8)[3:]] * 20


def test_a_drain_refuses_and_ends_nothing_that_was_accepted_before():
    bench = Bench(describe(max_lanes=1))
    accepted_before(bench, "runs")
    accepted_before(bench, "waits", num=0)
    bench.turn()
    bench.engine.drain(bench.front_end)
    accepted_before(bench, "comes")
    bench.run()
    assert not bench.front_end.failed
    assert bench.front_end.output_of("waits") == solo(PROMPT, 8)


def test_what_was_accepted_before_waits_the_grace_time_for_its_numerics_from_its_submission():
    bench = Bench(grace_seconds=30.0)
    bench.clock.now += 100.0
    accepted_before(bench, numerics_id="gone")
    bench.clock.now += 29.0
    bench.turn()
    assert not bench.front_end.failed
    bench.clock.now += 1.0
    bench.turn()
    assert bench.front_end.failed["old"].failure is Failure.UNAVAILABLE


def test_what_was_accepted_before_waits_for_a_worker_that_is_large_enough():
    bench = Bench(describe(groups=[(4, 5, None)]))
    accepted_before(bench, max_tokens=60)
    bench.run()
    assert bench.engine.state().snapshot.num_waiting_for_worker == 1
    bench.join(describe())
    bench.run()
    assert bench.front_end.output_of("old") == solo(PROMPT, 60)[3:]


def test_what_was_accepted_before_outlasts_a_first_worker_that_is_too_small():
    front_end, engine = RecordingFrontEnd(), Engine(Scheduler(), RecordingMetrics())
    front_end.submit(engine, make_request("old", max_tokens=60, was_accepted=True))
    front_end.submit(engine, make_request("new", max_tokens=60))
    engine.worker_joined(StrictWorker(engine, describe(groups=[(4, 5, None)])))
    engine.turn()
    assert front_end.failed.keys() == {"new"}


def test_what_was_accepted_before_still_has_to_have_the_key_of_a_live_request():
    bench = Bench()
    bench.submit("old", max_tokens=20)
    accepted_before(bench, resume_key=b"guessed")
    bench.run()
    assert bench.front_end.failed["old"].failure is Failure.ALREADY_EXISTS
