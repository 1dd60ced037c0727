"""What the engine counts, and what its snapshots show."""

import logging

import pytest
from fakes.control_plane.engine_doubles import Bench, make_choice
from fakes.worker.strict_worker import describe, solo

from control_plane.edge.metrics.counts import EngineCounts
from control_plane.engine.ports import Failure

PROMPT = (1, 2, 3)


class Accounts(Bench):
    """A bench with the counts that a scrape reads; asserts that no count falls."""

    def __init__(self, *descriptions, **options) -> None:
        super().__init__(*descriptions, metrics=EngineCounts(), **options)
        self._before: dict[tuple[str, ...], float] = {}

    def turn(self) -> None:
        super().turn()
        counts = self.counts()
        assert all(counts[key] >= value for key, value in self._before.items())
        self._before = counts

    def counts(self) -> dict[tuple[str, ...], float]:
        """Counters, and counts and sums of histograms, by name without the prefix and label values."""
        samples = [sample for family in self.metrics.families() for sample in family.samples]
        return {(sample.name.removeprefix("pypto_serving_"), *sample.labels.values()): sample.value for sample in samples}

    def outcomes(self) -> dict[str, float]:
        """How many requests ended in each way."""
        return {key[1]: value for key, value in self.counts().items() if key[0] == "requests_finished_total" and value}

    def submit_ten(self, kind: str, num_choices: int = 1, **changes) -> list[str]:
        names = [f"{kind}{index}" for index in range(10)]
        for name in names:
            self.submit(name, choices=[make_choice(index) for index in range(num_choices)], **changes)
        return names

    def end_all(self, names: list[str], failure: Failure) -> None:
        for name in names:
            self.end(name, failure)


def disturb(bench: Bench) -> None:
    """Preemptions, prefix hits, cancels, a duplicate, and a worker that is restarted."""
    for index in range(6):
        bench.submit(f"r{index}", (*range(8), index), max_tokens=45)
    bench.submit("r0")
    bench.run(20)
    bench.engine.abort("r5")
    bench.lose(bench.worker)
    bench.turn()
    bench.join(describe(groups=[(4, 17, None)], incarnation="b"))
    bench.run()


def test_met_01_counts_never_fall():
    bench = Accounts(describe(groups=[(4, 17, None)]))
    disturb(bench)
    for name in ("preemptions", "readmissions", "worker_losses", "prefix_hit_tokens"):
        assert bench.counts()[f"{name}_total",] > 0
    assert bench.outcomes() == {"length": 5, "cancelled": 1, "already_exists": 1}


def test_met_01_a_metric_that_fails_is_logged_once_and_nothing_else_happens(monkeypatch, caplog):
    bench = Bench()
    bench.submit(max_tokens=20)
    with monkeypatch.context() as patch:
        patch.setattr(bench.metrics, "observe", lambda observed: 1 / 0)
        bench.run()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)
    bench.run()
    assert bench.metrics.passes


def test_met_02_nothing_that_a_client_names_becomes_a_label():
    bench = Accounts()
    before = bench.counts().keys()
    for index in range(50):
        bench.submit(f"tenant{index}", (index, 1), cache_salt=f"salt{index}", resume_key=b"key", max_tokens=2)
        bench.end(f"tenant{index}", Failure.INTERNAL, f"secret{index}")
    bench.run()
    assert bench.counts().keys() == before


def test_met_04_each_request_is_counted_once_by_outcome():
    bench = Accounts(describe(max_lanes=20, groups=[(4, 400, None)]), max_losses=1)
    bench.submit_ten("length")
    bench.submit_ten("stop", end_token_ids=frozenset({solo(PROMPT, 3)[-1]}))
    bench.submit_ten("choices", num_choices=3)
    bench.run()
    cancelled, late = bench.submit_ten("cancelled", max_tokens=50), bench.submit_ten("late", max_tokens=50)
    bench.run(6)
    queued, slow = bench.submit_ten("queued"), bench.submit_ten("slow")
    bench.end_all(cancelled + queued, Failure.CANCELLED)
    bench.end_all(late, Failure.DEADLINE_EXCEEDED)
    bench.run(4)
    bench.end_all(slow, Failure.READER_TOO_SLOW)
    bench.submit_ten("invalid", max_tokens=5000)
    bench.submit_ten("lost", max_tokens=50)
    bench.run(2)
    for _ in range(1 + 2 + 10):  # all together, in halves, and each alone
        bench.lose(bench.worker)
        bench.join(describe(max_lanes=20, groups=[(4, 400, None)]))
        bench.turn()
    assert bench.outcomes() == {
        "length": 20,
        "stop": 10,
        "cancelled": 20,
        "deadline_exceeded": 10,
        "reader_too_slow": 10,
        "invalid_argument": 10,
        "aborted": 10,
    }
    counts = bench.counts()
    assert counts["requests_received_total",] == sum(bench.outcomes().values())
    assert counts["generation_tokens_total",] == sum(len(tokens) for tokens in bench.front_end.tokens.values())


def test_a_request_counts_as_length_if_one_of_its_choices_ended_so():
    bench = Accounts()
    bench.submit(choices=[make_choice(0), make_choice(1)])
    bench.run(4)
    bench.finish("r", 0)
    bench.run()
    assert bench.outcomes() == {"length": 1}


def test_several_choices_count_their_prompt_once_and_all_their_tokens():
    bench = Accounts()
    bench.submit("r", tuple(range(20)), choices=[make_choice(index) for index in range(4)])
    bench.run()
    counts = bench.counts()
    assert (counts["prompt_tokens_total",], counts["prefix_query_tokens_total",], counts["prefix_hit_tokens_total",]) == (20, 20, 0)
    assert counts["generation_tokens_total",] == 32
    assert counts["queue_seconds_count",] == counts["time_to_first_token_seconds_count",] == 1
    assert counts["request_seconds_count",] == counts["time_per_output_token_seconds_count",] == counts["decode_seconds_count",] == 4
    assert (counts["request_prompt_tokens_count",], counts["request_prompt_tokens_sum",]) == (1, 20)
    assert (counts["request_generation_tokens_count",], counts["request_generation_tokens_sum",]) == (4, 32)


def test_queue_prefill_and_decode_make_up_the_time_of_a_request():
    bench = Accounts()
    bench.submit("r", tuple(range(20)))
    bench.run()
    counts = bench.counts()
    parts = sum(counts[f"{part}_seconds_sum",] for part in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(counts["request_seconds_sum",]) and counts["prefill_seconds_sum",] > 0 < counts["decode_seconds_sum",]


def test_the_time_that_a_reader_takes_is_no_gap_between_tokens():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.run(8)
    bench.hold("r")
    bench.clock.now += 50.0
    bench.unhold("r")
    bench.run()
    assert max(gap for observed in bench.metrics.passes for gap in observed.inter_token_seconds) < 1.0


def test_a_pause_while_a_sequence_waits_to_be_admitted_again_is_no_further_admission():
    bench = Bench(describe(groups=[(4, 12, None)]))
    bench.submit("important", (5, 6), max_tokens=40, priority=-1)
    bench.submit("r", (7, 8), max_tokens=40)
    while not bench.scheduler.counters.preemptions:
        bench.run(1)
    bench.hold("r")
    bench.unhold("r")
    bench.run()
    assert bench.metrics.total("readmissions") == bench.front_end.finished["r", 0].num_readmissions == 1


def test_met_05_gauges_return_to_rest():
    bench = Bench(describe(groups=[(4, 17, None)]))
    disturb(bench)
    bench.clock.now += 1.0
    bench.turn()
    bench.assert_at_rest()
    snapshot = bench.engine.snapshot
    assert (snapshot.num_running, snapshot.num_waiting_tokens, snapshot.num_held, len(snapshot.workers)) == (0, 0, 0, 1)


def test_met_05_a_request_in_a_step_that_is_stuck_runs():
    bench = Bench()
    bench.submit()
    bench.turn()
    for _ in range(10):
        bench.clock.now += 1.0
        bench.engine.turn()
    assert bench.engine.snapshot.num_running == 1


@pytest.mark.parametrize("field", ["generation_tokens", "prefix_hit_tokens", "requests_received"])
def test_a_count_that_would_fall_is_refused(field):
    counts, observed = EngineCounts(), Bench().engine._stats.observed
    setattr(observed, field, -1)
    with pytest.raises(AssertionError, match=f"{field} falls by 1"):
        counts.observe(observed)


def test_metrics_count_each_token_once():
    bench = Bench(describe(groups=[(4, 17, None)]))
    for index in range(4):
        bench.submit(f"r{index}", (index, 1, 2, 3, 4), max_tokens=45)
    bench.run()
    total = bench.metrics.total
    assert total("prompt_tokens") == 20
    assert total("generation_tokens") == 180
    assert total("preemptions") == total("readmissions") > 0
    assert len(total("first_token_seconds")) == len(total("total_seconds")) == len(total("queue_seconds")) == 4
    gaps = sum(count for observed in bench.metrics.passes for count in observed.inter_token_seconds.values())
    assert gaps == 176
    assert len(total("step_seconds")) == len(bench.worker.history)


@pytest.mark.parametrize("num_resumed", [0, 2])
def test_metrics_count_a_resume_as_the_same_request(num_resumed):
    bench = Bench()
    bench.submit("r", tuple(range(9)), max_tokens=8)
    bench.run(4)
    bench.front_end.forget()
    bench.submit("r", tuple(range(9)), max_tokens=8, takes_over=True, resumed=solo(range(9), num_resumed))
    bench.run()
    total = bench.metrics.total
    assert (total("prompt_tokens"), total("prefix_query_tokens"), total("prefix_hit_tokens")) == (9, 9, 0)
    assert len(total("first_token_seconds")) == len(total("queue_seconds")) == len(total("prefill_seconds")) == 1
    assert (total("request_prompt_tokens"), total("request_generation_tokens")) == ([9], [8])


def test_a_device_without_work_is_not_called_idle():
    bench = Bench()
    bench.submit(max_tokens=8)
    bench.run()
    steps = len(bench.metrics.total("step_seconds"))
    # Before the first step there was no work, and the last one only releases the lane.
    assert len(bench.metrics.total("device_idle_seconds")) == steps - 2 == 7
