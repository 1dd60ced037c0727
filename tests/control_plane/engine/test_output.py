"""What is told about a request, and in which order."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, prompt_logprob, solo

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import FinishReason, Output, RequestAccepted, SequenceDelta, SequenceFinished

PROMPT = (1, 2, 3)


class Passes(Bench):
    """Keeps what each pass of the loop told."""

    def __init__(self, *descriptions, **options) -> None:
        super().__init__(*descriptions, **options)
        self.told: list[list[Output]] = []
        publish = self.sink.publish

        def keep(outputs) -> None:
            self.told.append(list(outputs))
            publish(outputs)

        self.sink.publish = keep


@pytest.mark.parametrize("changes", [{"max_tokens": 3}, {"end_token_ids": frozenset({solo(PROMPT, 3)[-1]})}, {"stop": ("never seen",)}])
def test_txt_06_the_last_text_comes_before_the_one_end_and_in_the_same_pass(changes):
    bench = Passes()
    bench.submit("r", **{"max_tokens": 3, **changes})
    bench.run()
    outputs = [output for outputs in bench.told for output in outputs]
    kinds = [RequestAccepted, *[SequenceDelta] * 3, SequenceFinished]
    assert [type(output) for output in outputs] == kinds
    assert bench.told[-1] == outputs[-2:]
    text = "".join(output.text for output in outputs if isinstance(output, SequenceDelta))
    assert text == "".join(f"<{token}>" for token in solo(PROMPT, 3))


def test_lpu_05_prompt_logprobs_survive_a_preemption_between_two_chunks():
    prompt = tuple(range(40))
    bench = Bench(describe(groups=[(4, 15, None)]), max_step_tokens=8, max_steps_in_flight=1)
    bench.submit("first", PROMPT, max_tokens=30)
    bench.run(11)
    bench.submit("r", prompt, max_tokens=4, sampling=SamplingParams(prompt_logprobs=2))
    bench.run()
    chunks = [num_tokens for step in bench.worker.history for num_tokens in step.chunk_tokens]
    assert chunks[1:4] == [7, 7, 8]  # the last one is of the second admission
    assert bench.metrics.total("preemptions") == bench.sink.finished["r", 0].num_readmissions == 1
    entries = bench.sink.prompt_logprobs["r"]
    assert [(entry.token_id, entry.logprob) for entry in entries[1:]] == [(i, prompt_logprob(prompt, i)) for i in range(1, 40)]
    assert bench.sink.output_of("r") == solo(prompt, 4)


def test_lpu_07_what_a_worker_draws_beyond_a_stop_is_told_counted_and_cached_nowhere():
    expected = solo(PROMPT, 6)
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=6, stop=(f"<{expected[3]}>",), sampling=SamplingParams(logprobs=True))
    bench.run()
    finished = bench.sink.finished["r", 0]
    drawn = len([step for step in bench.worker.history if step.num_tokens])
    assert drawn > finished.num_generated_tokens == 4  # a step more was in flight
    assert finished.reason is FinishReason.STOP
    assert bench.sink.output_of("r") == expected[:4]
    assert bench.metrics.total("generation_tokens") == 4
    # The page of tokens 4 to 7 is full on the worker; its last one, the first beyond the stop, is known to nobody.
    bench.submit("next", (*PROMPT, *expected[:5], 9), max_tokens=1)
    bench.run()
    assert bench.sink.finished["next", 0].num_cached_tokens == 4
