"""Messages to clients: numerics, log probabilities, usage."""

import json
import math

import pytest
from fakes.control_plane.stream_doubles import end_of, make_output
from fakes.text.tokenizers import EOS, byte_tokenizer
from google.protobuf.json_format import MessageToJson

from control_plane.core.step import TokenLogprob
from control_plane.edge.service.choice_output import ChoiceOutput, Delta
from control_plane.edge.service.responses import EventMaker, ResponseBuilder, serialized_response
from pypto_serving.inference.v1 import inference_pb2 as pb

BUILDER = ResponseBuilder(byte_tokenizer())


def put(output: ChoiceOutput, *token_ids: int, logprob: TokenLogprob | None = None) -> ChoiceOutput:
    output.token_ids.extend(token_ids)
    output.logprobs.extend([logprob] * len(token_ids) if logprob else [])
    return output


def finished_output(index: int, *token_ids: int, count: int, cached: int = 0) -> ChoiceOutput:
    output = put(make_output(index), *token_ids)
    output.finish(end_of(count=count, num_prompt_tokens=5, num_cached_tokens=cached))
    return output


def sent(maker: EventMaker, *outputs: ChoiceOutput) -> list[tuple[int, str, str]]:
    return [(event.delta.choice, event.delta.text, event.delta.numerics_id) for event in maker.events(outputs) if event.HasField("delta")]


def test_numerics_are_told_first_and_where_they_change() -> None:
    maker, first, second = EventMaker(BUILDER, pb.OutputOptions(stream_interval=1)), make_output(0), make_output(1)
    first.change_numerics("n1")
    second.change_numerics("n1")
    assert sent(maker, put(first, 1)) == [(0, "<1>", "n1")]
    assert sent(maker, put(first, 2)) == [(0, "<2>", "")]
    assert sent(maker, first, put(second, 1)) == [(1, "<1>", "n1")]
    first.change_numerics("n2")
    assert sent(maker, put(first, 3)) == [(0, "<3>", "n2")]
    assert sent(maker, put(first, 4)) == [(0, "<4>", "")]


def test_tokens_of_other_numerics_go_in_another_message() -> None:
    maker, output = EventMaker(BUILDER, pb.OutputOptions(stream_interval=10)), make_output()
    output.change_numerics("n1")
    put(output, 1, 2).change_numerics("n2")
    assert sent(maker, put(output, 3)) == [(0, "<1><2>", "n1")]
    output.finish(end_of())
    assert sent(maker, output) == [(0, "<3>", "n2")]


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e30])
def test_lpu_02_every_logprob_is_a_number_in_strict_json(logprob: float) -> None:
    entry = TokenLogprob(EOS, -0.25, ((EOS, -0.25), (1, logprob)))
    message = pb.Delta()
    BUILDER.write_delta(Delta(0, 0, [1], "a", [entry]), message)
    text = MessageToJson(message)
    json.loads(text, parse_constant=pytest.fail)
    assert [top.logprob for top in message.logprobs[0].top] == [-0.25, -9999.0]
    assert (message.logprobs[0].logprob, message.logprobs[0].token) == (-0.25, b"<eos>")


def test_lpu_01_without_alternatives_there_is_an_entry_and_no_more() -> None:
    (entry,) = BUILDER.logprobs([TokenLogprob(7, -1.5)])
    assert (entry.token_id, entry.logprob, len(entry.top)) == (7, -1.5, 0)


def answer(num_choices: int, *outputs: ChoiceOutput) -> pb.GenerateResponse:
    started = pb.Started(num_prompt_tokens=5, effective=pb.EffectiveParameters(n=num_choices))
    return pb.GenerateResponse.FromString(serialized_response(started, outputs, None, BUILDER))


def test_idn_02_usage_counts_the_prompt_once_and_the_tokens_of_all_choices() -> None:
    response = answer(2, finished_output(0, 1, 2, count=2, cached=3), finished_output(1, 1, count=10, cached=4))
    assert [(choice.index, choice.text) for choice in response.choices] == [(0, "<1><2>"), (1, "<1>")]
    assert response.usage == pb.Usage(prompt_tokens=5, completion_tokens=12, cached_tokens=3)


def test_a_resume_answers_with_the_choices_that_it_was_to_finish() -> None:
    response = answer(3, finished_output(2, 7, count=8))
    assert ([choice.index for choice in response.choices], response.usage.completion_tokens) == ([2], 8)


def test_messages_get_small_enough_to_be_made_while_others_wait() -> None:
    entry = TokenLogprob(1, -0.5, tuple((index, -1.0) for index in range(20)))
    maker = EventMaker(BUILDER, pb.OutputOptions(logprobs=True, top_logprobs=20, stream_interval=1024))
    events = list(maker.events([put(make_output(), *range(200), logprob=entry)]))
    assert {len(event.delta.token_ids) for event in events} == {1024 // 21}
    entries = iter([entry] * 150)
    sizes = []
    while event := BUILDER.prompt_event(entries, sum(sizes)):
        assert event.prompt_logprobs.first_index == sum(sizes)
        sizes.append(len(event.prompt_logprobs.entries))
    assert sizes == [64, 64, 22]


def test_a_message_is_made_when_the_one_before_it_is_gone() -> None:
    other = put(make_output(1), 1)
    events = EventMaker(BUILDER, pb.OutputOptions(stream_interval=1)).events([finished_output(0, 1, count=1), other])
    assert next(events).delta.choice == 0
    assert list(other.token_ids) == [1]


def test_what_comes_while_messages_are_written_is_left_for_the_next_time() -> None:
    maker, output = EventMaker(BUILDER, pb.OutputOptions(stream_interval=1)), put(make_output(), *range(70))
    sizes = []
    for event in maker.events([output]):
        sizes.append(len(event.delta.token_ids))
        put(output, 1)
    assert (sizes, len(output.token_ids)) == ([64, 7], 1)
    output.finish(end_of(count=72))
    last, end = maker.events([output])
    assert (len(last.delta.token_ids), end.HasField("finished")) == (1, True)


def test_txt_07_the_bytes_of_entries_join_to_the_text() -> None:
    ids = list("až雨😀b".encode())
    entries = BUILDER.logprobs([TokenLogprob(token_id, -1.0) for token_id in ids])
    assert ([entry.token_id for entry in entries], b"".join(entry.token for entry in entries).decode()) == (ids, "až雨😀b")
