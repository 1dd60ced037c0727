"""Choices of one request run on the pages of one prompt, and hold nobody up; driven by an engine with fake workers."""

import pytest
from fakes.control_plane.engine_doubles import Bench, make_choice
from fakes.worker.strict_worker import describe, solo

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import Failure

PROMPT = tuple(range(30, 41))  # two full pages and a tail


def submit(bench: Bench, name: str = "r", prompt=PROMPT, num_choices: int = 3, **changes) -> None:
    choices = [make_choice(index, sampling=SamplingParams(seed=index)) for index in range(num_choices)]
    bench.submit(name, prompt, choices=choices, **changes)


def admissions(bench: Bench) -> list:
    return [admission for worker in bench.workers for step in worker.history for admission in step.admissions]


def num_computed(bench: Bench) -> int:
    return sum(step.num_tokens for worker in bench.workers for step in worker.history)


def assert_right(bench: Bench, name: str = "r", prompt=PROMPT, num_choices: int = 3, max_tokens: int = 8) -> None:
    for choice in range(num_choices):
        assert bench.front_end.output_of(name, choice) == solo(prompt, max_tokens, seed=choice)
        assert (name, choice) in bench.front_end.finished
    bench.assert_at_rest()


@pytest.mark.parametrize("caching", [True, False])
def test_siblings_compute_only_the_tail_of_the_prompt(caching):
    bench = Bench(prefix_caching=caching)
    submit(bench)
    bench.run()
    assert [admission.num_computed_tokens for admission in admissions(bench)] == [0, 8, 8]
    assert len({tuple(admission.page_tables[0][:2]) for admission in admissions(bench)}) == 1
    assert num_computed(bench) == len(PROMPT) + 2 * 3 + 3 * 7
    assert_right(bench)


def test_siblings_wait_until_the_whole_prompt_is_acknowledged():
    bench = Bench(max_step_tokens=4)
    submit(bench)
    bench.run(2)
    assert len(admissions(bench)) == 1
    assert bench.engine.state().snapshot.num_waiting_for_capacity == 2
    bench.run()
    assert_right(bench)


def test_a_leader_prefills_as_fast_as_if_it_were_alone():
    bench = Bench(max_step_tokens=8, max_steps_in_flight=1)
    submit(bench)
    bench.turn()
    assert bench.worker.steps[0].num_tokens == 8


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_a_token_is_left_to_compute_for_each(length, max_tokens):
    bench = Bench(prefix_caching=False)
    submit(bench, prompt=PROMPT[:length], max_tokens=max_tokens)
    bench.run()
    assert [admission.num_computed_tokens for admission in admissions(bench)][1:] == [(length - 1) // 4 * 4] * 2
    assert_right(bench, prompt=PROMPT[:length], max_tokens=max_tokens)


def test_the_prompt_is_counted_once():
    bench = Bench()
    submit(bench)
    bench.run()
    submit(bench, "again")
    bench.run()
    assert bench.metrics.total("prompt_tokens") == bench.metrics.total("prefix_query_tokens") == 2 * len(PROMPT)
    assert bench.metrics.total("prefix_hit_tokens") == 8


def test_pages_outlive_a_leader_that_ends_before_its_siblings_start():
    bench = Bench(describe(max_lanes=1), prefix_caching=False)
    submit(bench, max_tokens=1)
    bench.run()
    assert [admission.num_computed_tokens for admission in admissions(bench)] == [0, 8, 8]
    assert_right(bench, max_tokens=1)


def test_pages_that_are_kept_give_way_to_a_request_that_would_not_fit_otherwise():
    bench = Bench(describe(groups=[(4, 10, None)], max_lanes=1), prefix_caching=False)
    long = tuple(range(28))
    submit(bench, prompt=long, max_tokens=1)
    bench.run(1)
    bench.submit("urgent", tuple(range(50, 80)), priority=-9, max_tokens=2)
    bench.run()
    assert bench.front_end.output_of("urgent") == solo(tuple(range(50, 80)), 2)
    assert_right(bench, prompt=long, max_tokens=1)


def test_pages_that_are_kept_give_way_to_a_running_sequence():
    bench = Bench(describe(groups=[(4, 12, None)], max_lanes=2), prefix_caching=False)
    bench.submit("running", (1, 2), max_tokens=44, priority=-9)
    submit(bench, prompt=tuple(range(12)), num_choices=2, max_tokens=2)
    bench.submit("between", (3, 4), max_tokens=40, priority=-1)  # takes the lane of the leader before the sibling
    bench.run()
    assert bench.front_end.output_of("running") == solo((1, 2), 44)
    assert_right(bench, prompt=tuple(range(12)), num_choices=2, max_tokens=2)


def test_groups_whose_siblings_lack_what_the_others_keep_give_way():
    # Pages of 12: the first group keeps 4, the second 4; each waiting sibling has 4 of 9.
    bench = Bench(describe(groups=[(4, 12, None)], max_lanes=1), prefix_caching=False)
    prompt = tuple(range(17))
    outputs = [solo(prompt, 20, seed=choice) for choice in range(2)]
    for name, priority in (("first", 0), ("second", -1)):
        choices = [make_choice(0), make_choice(1, sampling=SamplingParams(seed=1), resumed=outputs[1][:15])]
        ends = frozenset({outputs[0][0]}) - {*outputs[1]}  # of the leader
        bench.submit(name, prompt, max_tokens=20, priority=priority, choices=choices, end_token_ids=ends)
        bench.turn()
    bench.run()
    assert [bench.front_end.output_of(name, 1) for name in ("first", "second")] == [outputs[1][15:]] * 2
    bench.assert_at_rest()


def test_many_groups_that_keep_pages_end_all_the_same():
    bench = Bench(describe(groups=[(4, 12, None)], max_lanes=2), prefix_caching=False)
    for index in range(6):
        submit(bench, f"r{index}", tuple(range(index, index + 20)), max_tokens=3)
    bench.run()
    for index in range(6):
        assert_right(bench, f"r{index}", tuple(range(index, index + 20)), max_tokens=3)


def test_siblings_may_run_on_another_worker():
    bench = Bench(describe(address="a:1", max_lanes=1), describe(address="b:1", max_lanes=1), prefix_caching=False)
    submit(bench, num_choices=2, max_tokens=20)
    bench.run()
    assert [admission.num_computed_tokens for admission in admissions(bench)] == [0, 0]
    assert_right(bench, num_choices=2, max_tokens=20)


@pytest.mark.parametrize("num_rounds", range(6))
def test_a_lost_worker_does_not_matter(num_rounds):
    bench = Bench(describe(max_lanes=2), prefix_caching=False, max_step_tokens=4)
    submit(bench)
    bench.run(num_rounds)
    bench.lose(bench.worker)
    bench.join(describe(incarnation="b"))
    bench.run()
    assert_right(bench)


@pytest.mark.parametrize("num_rounds", range(6))
def test_a_request_can_be_held_at_any_moment(num_rounds):
    bench = Bench(describe(max_lanes=2), prefix_caching=False, max_step_tokens=4)
    submit(bench)
    bench.run(num_rounds)
    bench.hold("r")
    bench.run()
    assert bench.scheduler.replicas[0].kv.counts().referenced == 0
    bench.unhold("r")
    bench.run()
    assert_right(bench)


@pytest.mark.parametrize("num_rounds", range(6))
def test_a_request_can_be_aborted_at_any_moment(num_rounds):
    bench = Bench(describe(max_lanes=2), prefix_caching=False, max_step_tokens=4)
    submit(bench)
    bench.run(num_rounds)
    bench.engine.abort("r")
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.CANCELLED
    bench.assert_at_rest()


@pytest.mark.parametrize("num_rounds", range(6))
def test_a_drained_worker_hands_all_choices_over(num_rounds):
    bench = Bench(describe(address="a:1", max_lanes=2), prefix_caching=False, max_step_tokens=4)
    submit(bench)
    bench.run(num_rounds)
    bench.join(describe(address="b:1"))
    bench.engine.worker_draining(bench.worker)
    bench.run()
    assert_right(bench)


def test_a_preempted_leader_leads_again():
    bench = Bench(describe(groups=[(4, 14, None)]), prefix_caching=False, max_step_tokens=6)
    bench.submit("running", (1, 2), max_tokens=40, priority=-9)
    bench.run(6)
    submit(bench, prompt=tuple(range(40)), max_tokens=2)
    bench.run()
    assert bench.metrics.total("preemptions") > 0
    assert_right(bench, prompt=tuple(range(40)), max_tokens=2)


def test_a_window_is_shared_with_what_it_needs():
    bench = Bench(describe(groups=[(4, 40, None), (2, 40, 5)]), prefix_caching=False)
    submit(bench)
    bench.run()
    assert [admission.num_computed_tokens for admission in admissions(bench)] == [0, 8, 8]
    assert_right(bench)


def test_a_window_is_shared_by_siblings_that_have_the_end_of_its_last_page_to_compute():
    bench = Bench(describe(groups=[(4, 40, None), (4, 40, 4)]), prefix_caching=False)
    submit(bench, prompt=tuple(range(16)))
    bench.run()
    assert [admission.num_computed_tokens for admission in admissions(bench)] == [0, 12, 12]
    assert_right(bench, prompt=tuple(range(16)))


def test_resumed_choices_share_their_prompt():
    bench = Bench(prefix_caching=False)
    outputs = [solo(PROMPT, 8, seed=choice) for choice in range(3)]
    choices = [
        make_choice(choice, sampling=SamplingParams(seed=choice), resumed=outputs[choice][: 2 * choice], numerics_id="fake")
        for choice in range(3)
    ]
    bench.submit("r", PROMPT, choices=choices)
    bench.run()
    assert [admission.num_computed_tokens for admission in admissions(bench)] == [0, 8, 8]
    assert [bench.front_end.output_of("r", choice) for choice in range(3)] == [outputs[0], outputs[1][2:], outputs[2][4:]]
    bench.assert_at_rest()
