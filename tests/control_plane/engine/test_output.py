"""What is told about a request, and in which order."""

import pytest
from fakes.control_plane.engine_doubles import Bench, RecordingFrontEnd
from fakes.worker.strict_worker import describe, prompt_logprob, solo

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import FinishReason, Outputs

PROMPT = (1, 2, 3)


class Passes(RecordingFrontEnd):
    """Keeps what each pass of the loop told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Outputs] = []

    def publish(self, outputs: Outputs) -> None:
        self.told.append(outputs)
        super().publish(outputs)


@pytest.mark.parametrize("changes", [{"max_tokens": 3}, {"end_token_ids": frozenset({solo(PROMPT, 3)[-1]})}])
def test_txt_06_the_last_token_comes_before_the_one_end_and_in_the_same_pass(changes):
    bench, front_end = Bench(), Passes()
    bench.submit("r", front_end=front_end, **{"max_tokens": 5, **changes})
    bench.run()
    first, *told = front_end.told
    assert (first.accepted, len(first.numbers), first.finished) == (["r"], 0, [])
    assert [list(outputs.token_ids) for outputs in told] == [[token] for token in solo(PROMPT, 3)]
    assert [len(outputs.finished) for outputs in told] == [0, 0, 1]


def test_a_pass_brings_each_front_end_its_own_and_nothing_when_there_is_nothing():
    bench, other, idle = Bench(), Passes(), Passes()
    bench.submit("mine", max_tokens=4)
    bench.submit("idle", front_end=idle, max_tokens=1)
    bench.submit("theirs", (7, 8), front_end=other, max_tokens=6)
    bench.run()
    assert bench.front_end.output_of("mine") == solo(PROMPT, 4)
    assert other.output_of("theirs") == solo((7, 8), 6)
    assert len(idle.told) == 2
    assert (other.accepted, idle.accepted) == ({"theirs"}, {"idle"})


def test_front_ends_that_share_steps_get_their_own_tokens_and_log_probabilities():
    bench, other = Bench(), Passes()
    for index in range(3):
        bench.submit(f"mine{index}", (1, index), max_tokens=6, sampling=SamplingParams(logprobs=index == 1))
        bench.submit(f"theirs{index}", (2, index), front_end=other, max_tokens=6, sampling=SamplingParams(logprobs=index > 0))
    bench.run()
    for index in range(3):
        assert bench.front_end.output_of(f"mine{index}") == solo((1, index), 6)
        assert other.output_of(f"theirs{index}") == solo((2, index), 6)
    assert {key: len(entries) for key, entries in bench.front_end.logprobs.items()} == {("mine1", 0): 6}
    assert {key: len(entries) for key, entries in other.logprobs.items()} == {("theirs1", 0): 6, ("theirs2", 0): 6}


def test_lpu_05_prompt_logprobs_survive_a_preemption_between_two_chunks():
    prompt = tuple(range(40))
    bench = Bench(describe(groups=[(4, 15, None)]), max_step_tokens=8, max_steps_in_flight=1)
    bench.submit("first", PROMPT, max_tokens=30)
    bench.run(11)
    bench.submit("r", prompt, max_tokens=4, sampling=SamplingParams(prompt_logprobs=2))
    bench.run()
    chunks = [num_tokens for step in bench.worker.history for num_tokens in step.chunk_tokens]
    assert chunks[1:4] == [7, 7, 8]  # the last one is of the second admission
    assert bench.metrics.total("preemptions") == bench.front_end.finished["r", 0].num_readmissions == 1
    entries = bench.front_end.prompt_logprobs["r"]
    assert [(entry.token_id, entry.logprob) for entry in entries[1:]] == [(i, prompt_logprob(prompt, i)) for i in range(1, 40)]
    assert bench.front_end.output_of("r") == solo(prompt, 4)


def test_lpu_07_what_a_worker_draws_beyond_an_end_is_told_counted_and_cached_nowhere():
    expected = solo(PROMPT, 6)
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=6, sampling=SamplingParams(logprobs=True))
    bench.run(4)
    bench.finish("r")
    bench.run()
    finished = bench.front_end.finished["r", 0]
    drawn = len([step for step in bench.worker.history if step.num_tokens])
    assert drawn > finished.num_generated_tokens == 4  # a step more was in flight
    assert finished.reason is FinishReason.STOP
    assert bench.front_end.output_of("r") == expected[:4]
    assert bench.metrics.total("generation_tokens") == 4
    # The page of tokens 4 to 7 is full on the worker; its last one, the first beyond the stop, is known to nobody.
    bench.submit("next", (*PROMPT, *expected[:5], 9), max_tokens=1)
    bench.run()
    assert bench.front_end.finished["next", 0].num_cached_tokens == 4
