"""Joining output that piles up."""

from control_plane.core.step import TokenLogprob
from control_plane.edge.service.request_stream import joined
from control_plane.engine.ports import FinishReason, Output, PromptLogprobs, SequenceDelta, SequenceFinished


def delta(choice: int, index: int, numerics_id: str = "n") -> SequenceDelta:
    logprobs = (TokenLogprob(100 + index, -1.0),)
    return SequenceDelta("x", choice, index, (100 + index,), f"<{index}>", logprobs, numerics_id)


def finished(choice: int) -> SequenceFinished:
    return SequenceFinished("x", choice, FinishReason.LENGTH, None, 1, 3, 0, 0, 0.0, 0.0, 0.0)


def seen(outputs: list[Output]) -> list[tuple[object, ...]]:
    """Choice, first index, tokens, text and numerics of deltas; the type of anything else."""
    return [
        (output.choice, output.first_index, list(output.token_ids), output.text, output.numerics_id)
        if isinstance(output, SequenceDelta)
        else (type(output),)
        for output in outputs
    ]


def test_deltas_of_each_choice_become_one() -> None:
    outputs = joined([delta(0, 0), delta(1, 0), delta(0, 1), delta(1, 1), delta(0, 2)])
    assert seen(outputs) == [(0, 0, [100, 101, 102], "<0><1><2>", "n"), (1, 0, [100, 101], "<0><1>", "n")]
    assert [entry.token_id for entry in outputs[0].logprobs] == [100, 101, 102]


def test_what_is_no_delta_keeps_its_place() -> None:
    prompt = PromptLogprobs("x", ())
    outputs = joined([prompt, delta(0, 0), delta(0, 1), finished(0), delta(1, 0)])
    assert seen(outputs) == [(PromptLogprobs,), (0, 0, [100, 101], "<0><1>", "n"), (SequenceFinished,), (1, 0, [100], "<0>", "n")]


def test_tokens_of_other_numerics_stay_apart() -> None:
    outputs = joined([delta(0, 0, "a"), delta(0, 1, "b"), delta(0, 2, "b")])
    assert seen(outputs) == [(0, 0, [100], "<0>", "a"), (0, 1, [101, 102], "<1><2>", "b")]


def test_what_is_joined_fits_a_small_message() -> None:
    outputs = joined(joined([delta(0, index) for index in range(100)]) + [delta(0, index) for index in range(100, 150)])
    assert [len(output.token_ids) for output in outputs] == [64, 64, 22]
    assert [token_id for output in outputs for token_id in output.token_ids] == [*range(100, 250)]


def test_joining_again_changes_nothing() -> None:
    outputs = joined([delta(0, index) for index in range(5)])
    assert seen(joined([*outputs, delta(0, 5)])) == [(0, 0, [*range(100, 106)], "<0><1><2><3><4><5>", "n")]
