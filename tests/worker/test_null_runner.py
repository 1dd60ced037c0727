"""A runner that computes nothing."""

import math

import numpy as np
import pytest
from fakes.device.steps import drawn, ids, step, worker_admission

from worker.lanes.step_rules import InvalidStep
from worker.null_runner import NullRunner
from worker.progress import ProgressCounter
from worker.step import CacheGroup, LaneSampling, RunnerLimits
from worker.step_time import StepTable, StepTime

_VOCAB = 50


class _Time:
    """Passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


def _runner(
    time: _Time | None = None,
    step_seconds: float = 0.0,
    token_seconds: float = 0.0,
    vocab_size: int = _VOCAB,
    table: StepTable | None = None,
) -> NullRunner:
    time = time or _Time()
    limits = RunnerLimits(vocab_size, max_model_len=32, max_lanes=4, max_step_tokens=64)
    timing = StepTime(step_seconds, token_seconds, table, time.clock, time.sleep)
    return NullRunner(limits, [CacheGroup("full", 4, 32)], timing, ProgressCounter())


def _generate(runner: NullRunner, lane: int = 0, **fields) -> list[int]:
    """The eight tokens of a sequence."""
    first = runner.execute(step(1, {lane: 3}, admissions=[worker_admission(lane, **fields)]))
    return [drawn(first)[lane], *(drawn(runner.execute(step(number)))[lane] for number in range(2, 9))]


def test_tokens_follow_from_seed_and_index() -> None:
    seeded = {"sampling": LaneSampling(seed=2**64 - 1)}
    first = _generate(_runner(), **seeded)
    assert _generate(_runner(), 3, generation=7, **seeded) == first
    assert _generate(_runner(), sampling=LaneSampling(seed=1)) != first
    assert len(set(first)) > 3 and all(0 <= token_id < _VOCAB for token_id in first)
    resumed = worker_admission(0, [1, 2, 3, *first[:5]], num_prompt_tokens=3, final_length=11, **seeded)
    assert drawn(_runner().execute(step(1, {0: 8}, admissions=[resumed]))) == {0: first[5]}


def test_a_sequence_ends_by_its_length_and_not_by_an_end_token() -> None:
    runner = _runner()
    ends = sorted(set(_generate(_runner())))
    tokens = _generate(runner, end_token_ids=ids(*ends))
    assert not set(tokens) & set(ends)
    assert drawn(runner.execute(step(9))) == {}


def test_a_mask_is_kept_and_ends_a_sequence_only_when_it_allows_nothing_else() -> None:
    runner = _runner()

    def masked(number: int, *allowed: int, **fields) -> object:
        mask = sum(1 << token_id for token_id in allowed).to_bytes(7, "little")
        return runner.execute(step(number, masks={0: mask}, **fields))

    admission = worker_admission(0, constrained=True, end_token_ids=ids(7), min_length=5)
    assert drawn(masked(1, 7, 9, chunks={0: 3}, admissions=[admission])) == {0: 9}
    assert drawn(masked(2, 11)) == {0: 11}
    assert drawn(masked(3, 7)) == {0: 7}
    assert drawn(runner.execute(step(4))) == {}


@pytest.mark.parametrize("allowed", [(), (7,)])
def test_a_lane_fails_when_nothing_is_left_to_draw(allowed: tuple[int, ...]) -> None:
    runner = _runner()
    mask = sum(1 << token_id for token_id in allowed).to_bytes(7, "little")
    admission = worker_admission(0, constrained=True, end_token_ids=ids(7), min_length=5)
    first = runner.launch(step(1, {0: 3}, admissions=[admission, worker_admission(1, page_tables=[ids(3, 4, 5)])], masks={0: mask}))
    result = runner.collect(first)
    (error,) = result.lane_errors
    assert (error.lane, error.nothing_to_draw) == (0, True) and drawn(result) == {}


def test_what_a_lane_computed_behind_its_end_is_void() -> None:
    runner = _runner(_Time(), step_seconds=0.005)
    mask = (1 << 7).to_bytes(7, "little")
    first = runner.launch(step(1, {0: 3}, admissions=[worker_admission(0, end_token_ids=ids(7), constrained=True)], masks={0: mask}))
    second = runner.launch(step(2, masks={0: mask}))
    assert drawn(runner.collect(first)) == {0: 7} and drawn(runner.collect(second)) == {}


def test_log_probabilities_say_that_all_tokens_are_equally_likely() -> None:
    sampling = LaneSampling(logprobs=True, top_logprobs=2, prompt_logprobs=1)
    result = _runner().execute(step(1, {0: 3}, admissions=[worker_admission(0, sampling=sampling)]))
    (token,), (prompt,) = result.logprobs, result.prompt_logprobs
    assert token.sampled == pytest.approx(-math.log(_VOCAB)) and token.top_token_ids.tolist() == [0, 1]
    assert prompt.first_index == 1 and prompt.logprobs.tolist() == pytest.approx([-math.log(_VOCAB)] * 2)
    assert prompt.top_token_ids.tolist() == [0, 0]


def test_a_step_that_breaks_a_rule_is_refused_without_effect() -> None:
    runner = _runner()
    with pytest.raises(InvalidStep):
        runner.launch(step(1, {0: 1}))
    assert len(_generate(runner)) == 8


def test_a_step_takes_its_time_by_the_tokens_that_run() -> None:
    time = _Time()
    runner = _runner(time, step_seconds=0.005, token_seconds=0.001)
    runner.execute(step(1, {0: 3}, admissions=[worker_admission(0)]))
    runner.execute(step(2))
    assert time.slept == [0.008, 0.006]
    runner.execute(step(3, released_lanes=[0]))
    assert time.slept == [0.008, 0.006]


def test_a_step_takes_the_time_of_a_table() -> None:
    time = _Time()
    runner = _runner(time, table=StepTable({1: ([0, 10], [4.0, 24.0])}))
    runner.execute(step(1, {0: 3}, admissions=[worker_admission(0)]))
    runner.execute(step(2))
    runner.execute(step(3, released_lanes=[0]))
    assert time.slept == [0.008, 0.004]


def test_steps_run_one_after_the_other() -> None:
    time = _Time()
    runner = _runner(time, step_seconds=0.005)
    first = runner.launch(step(1, {0: 3}, admissions=[worker_admission(0)]))
    second = runner.launch(step(2))
    assert not first.is_ready and not second.is_ready
    time.now += 0.004
    assert (len(drawn(runner.collect(first))), len(drawn(runner.collect(second)))) == (1, 1)
    assert time.slept == [0.001, 0.005]
    assert runner.launch(step(3, released_lanes=[0])).is_ready


def test_without_a_time_everything_is_ready_at_once() -> None:
    assert _runner().launch(step(1, {0: 3}, admissions=[worker_admission(0)])).is_ready


def test_the_warm_up_leaves_nothing_behind_and_tells_how_long_a_step_takes() -> None:
    time = _Time()
    runner = _runner(time, step_seconds=0.005)
    runner.warm_up()
    assert time.slept == [0.005, 0.005]
    fresh = _runner().execute(step(1, {0: 3}, admissions=[worker_admission(0)]))
    warmed = runner.execute(step(1, {0: 3}, admissions=[worker_admission(0)]))
    assert warmed.digest == fresh.digest and np.array_equal(warmed.token_ids, fresh.token_ids)
