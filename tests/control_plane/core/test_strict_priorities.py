"""A lower number first, however long others have waited; the scheduler driven by hand, and by an engine."""

import math
import random

from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.core.sequence import Sequence
from control_plane.core.step import StepResult

STRICT = SchedulerOptions(ageing_seconds=math.inf)


def sequence(number: int, priority: int, arrival_time: float, num_tokens: int = 2) -> Sequence:
    prompt = [number, *range(num_tokens - 1)]
    return Sequence(str(number), 0, prompt, num_tokens, num_tokens + 8, 0, frozenset(), SamplingParams(), arrival_time, priority)


def rank(waiting: Sequence) -> tuple[int, float, int]:
    """The place of a sequence among all, by the words of the documentation."""
    return waiting.priority, waiting.arrival_time, int(waiting.request_id)


def run_one_step(scheduler: Scheduler) -> list[Sequence]:
    """Schedule, end whatever started, and acknowledge; returns what started, in order."""
    started = []
    for replica, step in scheduler.schedule(0.0):
        lanes = {running.lane: running for running in replica.running}
        started += [lanes[admission.lane] for admission in step.admissions]
        for running in tuple(replica.running):
            scheduler.finish(running)
        scheduler.update(replica, StepResult(step.step_id))
    return started


def start_all(scheduler: Scheduler) -> tuple[list[Sequence], int]:
    """Run until nobody waits; returns who started, in order, and the most looks at workers in one pass."""
    order, most_looks = [], 0
    while scheduler.waiting:
        order += run_one_step(scheduler)
        most_looks = max(most_looks, scheduler._selector.num_looks)
    return order, most_looks


def many_waiting(num: int, **worker) -> tuple[Scheduler, list[Sequence]]:
    scheduler, random_number = Scheduler(STRICT), random.Random(num)
    scheduler.add_replica(describe(**worker), 0.0)
    sequences = [sequence(index, random_number.randrange(-3, 4), random_number.uniform(0, 1e6)) for index in range(num)]
    for each in sequences:
        scheduler.submit(each, 0.0)
    return scheduler, sequences


def test_ten_thousand_start_in_the_order_of_priority_and_arrival():
    scheduler, sequences = many_waiting(10_000, max_lanes=8)
    order, _ = start_all(scheduler)
    assert order == sorted(sequences, key=rank)


def test_a_pass_looks_at_no_more_when_ten_thousand_wait():
    assert start_all(many_waiting(10_000, max_lanes=8)[0])[1] == start_all(many_waiting(100, max_lanes=8)[0])[1] <= 16


def test_a_newcomer_starts_before_ten_thousand_that_wait():
    scheduler, _ = many_waiting(10_000, max_lanes=1)
    run_one_step(scheduler)
    scheduler.submit(newcomer := sequence(10_000, -4, 2e6), 0.0)
    assert run_one_step(scheduler) == [newcomer]


class Machine:
    """A scheduler with small workers; `waiting` is the oracle: everybody who may start, in the order of the documentation."""

    def __init__(self, num_workers: int, **worker) -> None:
        self.scheduler = Scheduler(STRICT)
        self.num_submitted = 0
        self.sequences: list[Sequence] = []  # that have not ended
        self.held: list[Sequence] = []
        for number in range(num_workers):
            self.scheduler.add_replica(describe(address=f"w:{number}", max_lanes=4, max_steps_in_flight=1, **worker), 0.0)

    @property
    def running(self) -> list[Sequence]:
        return [running for replica in self.scheduler.replicas for running in replica.running]

    @property
    def waiting(self) -> list[Sequence]:
        return sorted((each for each in self.sequences if each.replica is None and each not in self.held), key=rank)

    def submit(self, num: int, priority: int, num_tokens: int, seconds_ago: float) -> None:
        for _ in range(num):
            self.num_submitted += 1
            self.sequences.append(sequence(self.num_submitted, priority, self.num_submitted - seconds_ago, num_tokens))
            self.scheduler.submit(self.sequences[-1], 0.0)

    def finish(self, place: int) -> None:
        if self.running:
            self.end(self.running[place % len(self.running)])

    def hold(self, place: int) -> None:
        live = self.running + self.waiting
        if live:
            self.held.append(live[place % len(live)])
            self.scheduler.hold(self.held[-1], 0.0)

    def unhold(self, place: int) -> None:
        if self.held:
            self.scheduler.unhold(self.held.pop(place % len(self.held)), 0.0)

    def reset(self, place: int) -> None:
        replica = self.scheduler.replicas[place % len(self.scheduler.replicas)]
        for exhausted in self.scheduler.reset_replica(replica, 0.0, counts=True):
            self.end(exhausted)
        self.scheduler.reset_done(replica)

    def step(self, _: int = 0) -> tuple[list[Sequence], list[Sequence]]:
        """One step of every worker; returns who waited, and who of them started."""
        before = {replica: {running: running.generation for running in replica.running} for replica in self.scheduler.replicas}
        waited = self.waiting
        steps = self.scheduler.schedule(0.0)
        started = [each for each in waited if each.replica is not None]
        for ran in before.values():
            victims = {each for each, generation in ran.items() if each.generation != generation}
            assert all(rank(other) < rank(victim) for victim in victims for other in ran.keys() - victims)
        for replica, step in steps:
            runs = replica._in_flight[0].runs
            tokens = {run.lane: 1 for run, _, _, samples in runs if samples}
            updates = self.scheduler.update(replica, StepResult(step.step_id, tokens))
            for each in updates.sequences:
                if len(each.token_ids) == each.final_length:
                    self.end(each)
        self.scheduler.check_integrity()
        return waited, started

    def end(self, each: Sequence) -> None:
        self.scheduler.finish(each)
        self.sequences.remove(each)


def operations(max_tokens: int):
    submit = st.tuples(st.just("submit"), st.sampled_from([1, 2, 20]), st.integers(-2, 2), st.integers(1, max_tokens), st.floats(0, 5))
    others = st.tuples(st.sampled_from(["step", "step", "finish", "hold", "unhold", "reset"]), st.integers(0, 99))
    return st.lists(submit | submit | others, min_size=20, max_size=80)


@given(operations(max_tokens=1))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_who_starts_is_the_beginning_of_the_sorted_list(operations):
    machine = Machine(1)
    for name, *arguments in operations:
        outcome = getattr(machine, name)(*arguments)
        if outcome:
            waited, started = ([each for each in sequences if each.suspicion is None] for sequences in outcome)
            assert started == waited[: len(started)]


@given(operations(max_tokens=40), st.integers(1, 3))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_nobody_takes_pages_that_one_of_a_lower_number_waits_for(operations, num_workers):
    machine = Machine(num_workers, groups=[(4, 20, None)])
    for name, *arguments in operations:
        outcome = getattr(machine, name)(*arguments)
        if outcome:
            waited, started = outcome
            going_on = {*started, *machine.scheduler.waiting._deferrals}  # the latter wait for the next step of another worker
            left = [each for each in waited if each not in going_on and each.suspicion is None]
            assert all(one.priority <= other.priority for one in started for other in left)


def test_the_next_that_did_not_fit_is_looked_at_before_any_of_a_higher_number():
    machine = Machine(2, groups=[(4, 20, None)], max_step_tokens=16)
    first, second = machine.scheduler.replicas
    machine.submit(2, -9, 46, 0)
    for _ in range(4):
        machine.step()
    machine.submit(4, -9, 2, 0)
    machine.step()
    for short in first.running[1:]:  # so that the first worker has less to do
        machine.end(short)
    machine.submit(2, -2, 30, 0)  # the numbers 7 and 8
    machine.submit(10, -1, 3, 0)
    assert machine.step()[1] == []
    machine.submit(1, -5, 16, 0)  # takes a whole step of the first worker, for which number 7 waits then
    for long in (first.running[0], second.running[0]):
        machine.end(long)
    assert [started.request_id for started in machine.step()[1]] == ["19", "8", "10"]


def test_requests_of_an_engine_finish_in_the_order_of_priority_however_long_others_wait():
    bench = Bench(describe(max_lanes=1), ageing_seconds=math.inf)
    bench.submit("patient", priority=3, arrival_time=0.0)
    bench.submit("paused", priority=-1, arrival_time=5.0)
    bench.hold("paused")
    for name, priority in (("third", 2), ("first", 0), ("second", 0)):
        bench.submit(name, priority=priority, arrival_time=1e9)
    bench.turn()
    bench.unhold("paused")
    bench.run()
    assert [name for name, _ in bench.front_end.finished] == ["first", "paused", "second", "third", "patient"]


def test_the_highest_number_is_preempted_however_long_it_has_run():
    bench = Bench(describe(groups=[(4, 16, None)]), ageing_seconds=math.inf)
    bench.submit("old", (1, 2, 3), max_tokens=40, priority=1, arrival_time=0.0)
    bench.run(4)
    bench.submit("new", (4, 5, 6), max_tokens=40, priority=0, arrival_time=1e9)
    bench.run()
    assert bench.scheduler.counters.preemptions
    assert [name for name, _ in bench.front_end.finished] == ["new", "old"]
