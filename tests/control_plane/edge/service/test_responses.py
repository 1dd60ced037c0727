"""Messages to clients: numerics, log probabilities, usage."""

import json
import math

import pytest
from fakes.text.tokenizers import EOS, byte_tokenizer
from google.protobuf.json_format import MessageToJson

from control_plane.core.step import TokenLogprob
from control_plane.edge.service.responses import DeltaGatherer, ResponseBuilder, serialized_response
from control_plane.engine.ports import FinishReason, SequenceDelta, SequenceFinished
from pypto_serving.inference.v1 import inference_pb2 as pb

BUILDER = ResponseBuilder(byte_tokenizer())


def delta(index: int, numerics_id: str = "n1", choice: int = 0, logprobs: list[TokenLogprob] | None = None) -> SequenceDelta:
    return SequenceDelta("r", choice, index, [ord("a") + index], chr(ord("a") + index), logprobs or [], numerics_id)


def finished(choice: int, num_generated: int = 1, cached: int = 0) -> SequenceFinished:
    return SequenceFinished("r", choice, FinishReason.LENGTH, None, 5, num_generated, cached, 0, 0.1, 0.2, 0.3)


def sent(gatherer: DeltaGatherer, *outputs: SequenceDelta | SequenceFinished) -> list[tuple[int, str, str]]:
    return [
        (event.delta.choice, event.delta.text, event.delta.numerics_id) for event in gatherer.events(outputs) if event.HasField("delta")
    ]


def test_numerics_are_told_first_and_where_they_change() -> None:
    gatherer = DeltaGatherer(BUILDER, pb.OutputOptions(stream_interval=1))
    assert sent(gatherer, delta(0)) == [(0, "a", "n1")]
    assert sent(gatherer, delta(1)) == [(0, "b", "")]
    assert sent(gatherer, delta(0, choice=1)) == [(1, "a", "n1")]
    assert sent(gatherer, delta(2, "n2")) == [(0, "c", "n2")]
    assert sent(gatherer, delta(3, "n2")) == [(0, "d", "")]


def test_tokens_of_other_numerics_go_in_another_message() -> None:
    gatherer = DeltaGatherer(BUILDER, pb.OutputOptions(stream_interval=10))
    assert sent(gatherer, delta(0), delta(1), delta(2, "n2")) == [(0, "ab", "n1")]
    assert sent(gatherer, finished(0, 3)) == [(0, "c", "n2")]


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e30])
def test_lpu_02_every_logprob_is_a_number_in_strict_json(logprob: float) -> None:
    entry = TokenLogprob(EOS, -0.25, ((EOS, -0.25), (1, logprob)))
    message = BUILDER.delta([delta(0, logprobs=[entry])])
    text = MessageToJson(message)
    json.loads(text, parse_constant=pytest.fail)
    assert [top.logprob for top in message.logprobs[0].top] == [-0.25, -9999.0]
    assert (message.logprobs[0].logprob, message.logprobs[0].token) == (-0.25, b"<eos>")


def test_lpu_01_without_alternatives_there_is_an_entry_and_no_more() -> None:
    (entry,) = BUILDER.logprobs([TokenLogprob(7, -1.5)])
    assert (entry.token_id, entry.logprob, len(entry.top)) == (7, -1.5, 0)


def test_idn_02_usage_counts_the_prompt_once_and_the_tokens_of_all_choices() -> None:
    started = pb.Started(num_prompt_tokens=5, effective=pb.EffectiveParameters(n=2))
    outputs = [delta(0), delta(0, choice=1), finished(1, 10, 4), delta(1), finished(0, 2, 3)]
    response = pb.GenerateResponse.FromString(serialized_response(started, outputs, BUILDER))
    assert [(choice.index, choice.text) for choice in response.choices] == [(0, "ab"), (1, "a")]
    assert response.usage == pb.Usage(prompt_tokens=5, completion_tokens=12, cached_tokens=3)


def test_a_resume_answers_with_the_choices_that_it_was_to_finish() -> None:
    started = pb.Started(num_prompt_tokens=5, effective=pb.EffectiveParameters(n=3))
    response = pb.GenerateResponse.FromString(serialized_response(started, [delta(7, choice=2), finished(2, 8)], BUILDER))
    assert ([choice.index for choice in response.choices], response.usage.completion_tokens) == ([2], 8)


def test_messages_get_small_enough_to_be_made_while_others_wait() -> None:
    entry = TokenLogprob(1, -0.5, tuple((index, -1.0) for index in range(20)))
    gatherer = DeltaGatherer(BUILDER, pb.OutputOptions(logprobs=True, top_logprobs=20, stream_interval=1024))
    events = list(gatherer.events([delta(index, logprobs=[entry]) for index in range(200)]))
    assert {len(event.delta.token_ids) for event in events} == {1024 // 21}
    entries = iter([entry] * 150)
    sizes = []
    while event := BUILDER.prompt_event(entries, sum(sizes)):
        assert event.prompt_logprobs.first_index == sum(sizes)
        sizes.append(len(event.prompt_logprobs.entries))
    assert sizes == [64, 64, 22]


def test_a_message_is_made_when_the_one_before_it_is_gone() -> None:
    gatherer = DeltaGatherer(BUILDER, pb.OutputOptions(stream_interval=1))
    events = gatherer.events([delta(0), finished(0), delta(0, choice=1)])
    assert next(events).delta.choice == 0
    assert not gatherer._gathered  # the delta of the other choice has not been looked at


def test_txt_07_the_bytes_of_entries_join_to_the_text() -> None:
    ids = list("až雨😀b".encode())
    entries = BUILDER.logprobs([TokenLogprob(token_id, -1.0) for token_id in ids])
    assert ([entry.token_id for entry in entries], b"".join(entry.token for entry in entries).decode()) == (ids, "až雨😀b")
