"""Requests that workers die of: they end, and nobody else ends for them; driven by an engine with fake workers."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import StrictWorker, chunks_of, describe, solo
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.step import LaneAdmission
from control_plane.engine.ports import Failure

MAX_LOSSES = 3


class Mortal(StrictWorker):
    """Dies in the step in which a lane of a poison computes its deadly token."""

    deadly: dict[int, int]  # first token of a prompt -> index of the deadly one

    def dies_next(self) -> bool:
        """Whether the oldest step is the last."""
        step = self.steps[0]
        admissions = {lane: state.admission for lane, state in self.lanes.items() if lane not in step.released_lanes}
        admissions.update((admission.lane, admission) for admission in step.admissions)
        chunks = dict(chunks_of(step))
        return any(self._kills(admission, chunks) for admission in admissions.values())

    def _kills(self, admission: LaneAdmission, chunks: dict[int, int]) -> bool:
        deadly = self.deadly.get(admission.token_ids[0])
        if deadly is None:
            return False
        lane = self.lanes.get(admission.lane)
        if lane is None or lane.admission is not admission:
            computed, num_known = admission.num_computed_tokens, len(admission.token_ids)
        else:
            computed, num_known = lane.num_computed, len(lane.token_ids)
        num = chunks.get(admission.lane, 1 if num_known - computed == 1 else 0)
        return computed <= deadly < computed + num


class Fleet(Bench):
    """A bench whose workers die of poison, and come back."""

    def __init__(self, num_workers: int, deadly: dict[int, int], fails: bool = False, **options) -> None:
        self.deadly = deadly
        self.fails = fails  # the worker lives, and says that the step failed
        self.num_losses = 0
        super().__init__(*(describe(address=f"w{index}:1", groups=[(4, 300, None)]) for index in range(num_workers)), **options)

    def join(self, description) -> Mortal:
        worker = Mortal(self.engine, description)
        worker.deadly = self.deadly
        self.engine.worker_joined(worker)
        self.workers.append(worker)
        return worker

    def round(self) -> None:
        """One step of every worker."""
        self.turn()
        for worker in tuple(self.workers):
            if not worker.steps:
                continue
            if not worker.dies_next():
                worker.run_step()
            elif self.fails:
                self.num_losses += 1
                worker.failing = "out of memory"
                worker.run_step()
                self.turn()
                worker.finish_reset()
            else:
                self.num_losses += 1
                self.lose(worker)
                self.join(worker.description)
            self.turn()
        self.clock.now += 0.01

    def run_out(self, num_rounds: int) -> None:
        while any(worker.steps for worker in self.workers) or self.scheduler.waiting:
            self.round()
            num_rounds -= 1
            assert num_rounds > 0, "it does not end"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_twenty_innocents_live_beside_one_poison(num_workers, fails):
    fleet = Fleet(num_workers, {96: 2}, fails, max_losses=MAX_LOSSES)
    for index in range(20):
        fleet.submit(f"r{index}", (index, 1, 2), max_tokens=12)
    fleet.submit("poison", (96, 1, 2, 3), max_tokens=12)
    fleet.run_out(400)
    assert fleet.front_end.failed["poison"].failure is Failure.ABORTED
    assert [fleet.front_end.output_of(f"r{index}") for index in range(20)] == [solo((index, 1, 2), 12) for index in range(20)]
    assert fleet.num_losses <= 2 + MAX_LOSSES
    fleet.assert_at_rest()


def test_a_long_prompt_that_makes_progress_is_no_poison():
    options = {"max_step_tokens": 64, "max_steps_in_flight": 1, "prefix_caching": False}
    bench = Bench(describe(groups=[(16, 400, None)]), max_losses=MAX_LOSSES, **options)
    prompt = tuple(token % 97 for token in range(1200))
    bench.submit("r", prompt, max_tokens=2)
    for num_rounds in (3, 5, 7, 9, 11, 13):
        bench.run(num_rounds)
        bench.lose(bench.worker)
        bench.join(describe(groups=[(16, 400, None)]))
    bench.run()
    assert bench.front_end.output_of("r") == solo(prompt, 2)


def test_what_was_computed_before_is_no_progress():
    fleet = Fleet(1, {96: 100}, max_losses=MAX_LOSSES, max_step_tokens=16, max_steps_in_flight=1, prefix_caching=False)
    fleet.submit("poison", (96, *range(90), *range(30)), max_tokens=2)
    fleet.run_out(100)
    assert fleet.front_end.failed["poison"].failure is Failure.ABORTED
    assert fleet.num_losses == MAX_LOSSES


def test_others_run_in_every_other_step_while_a_suspect_computes_its_prompt_again():
    bench = Bench(describe(address="a:1", groups=[(4, 400, None)]), max_losses=MAX_LOSSES, max_step_tokens=16, prefix_caching=False)
    prompt = tuple(range(90)) * 2
    bench.submit("suspect", prompt, max_tokens=2)
    bench.run(13)
    bench.lose(bench.worker)
    bench.submit("other", (1, 2), max_tokens=30)
    bench.join(describe(address="b:1", groups=[(4, 400, None)]))
    bench.run(20)
    assert len(bench.front_end.output_of("other")) >= 9
    assert all(len(lanes_of(step)) <= 1 for step in bench.worker.history[:20] if step.num_tokens > 1)
    bench.run()
    assert bench.front_end.output_of("suspect") == solo(prompt, 2)


def lanes_of(step) -> list[int]:
    return [lane for lane, num_tokens in chunks_of(step) if num_tokens]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2), st.integers(-1, 1)), min_size=4, max_size=24),
    st.dictionaries(st.integers(0, 23), st.integers(0, 45), max_size=4),
    st.fixed_dictionaries({"max_steps_in_flight": st.integers(1, 2), "max_step_tokens": st.sampled_from([16, 64])}),
    st.integers(1, 3),
    st.booleans(),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_no_innocent_ends_and_each_poison_ends_after_a_bounded_number_of_losses(requests, poisons, options, num_workers, fails):
    deadly = {name: min(index, requests[name][0] + 5) for name, index in poisons.items() if name < len(requests)}
    fleet = Fleet(num_workers, deadly, fails, max_losses=MAX_LOSSES, **options)
    prompts = [(name, *range(length)) for name, (length, _, _) in enumerate(requests)]
    for name, (_, num_rounds, priority) in enumerate(requests):
        fleet.submit(f"r{name}", prompts[name], max_tokens=8, priority=priority)
        for _ in range(num_rounds):
            fleet.round()
    fleet.run_out(3000)
    for name, prompt in enumerate(prompts):
        if name in deadly:
            assert fleet.front_end.failed[f"r{name}"].failure is Failure.ABORTED
        else:
            assert fleet.front_end.output_of(f"r{name}") == solo(prompt, 8)
    assert fleet.num_losses <= len(deadly) * (2 + MAX_LOSSES)
    fleet.assert_at_rest()
