import grpc
import pytest

from clients.errors import ServingError
from clients.request import Request
from clients.stream_state import StreamState
from pypto_serving.inference.v1 import inference_pb2 as pb


def started(fingerprint="f1", key=b"k1", n=1):
    return pb.GenerateStreamResponse(
        started=pb.Started(request_id="r", model_fingerprint=fingerprint, resume_key=key, effective=pb.EffectiveParameters(n=n))
    )


def delta(first_index, *ids, choice=0, numerics_id=""):
    return pb.GenerateStreamResponse(delta=pb.Delta(choice=choice, first_index=first_index, token_ids=ids, numerics_id=numerics_id))


def finished(choice=0):
    return pb.GenerateStreamResponse(finished=pb.Finished(choice=choice, reason=pb.FINISH_REASON_LENGTH))


def begun(*responses, n=1, **fields):
    state = StreamState(Request("hi", **fields))
    for response in (started(n=n), *responses):
        state.receive(response)
    return state


@pytest.mark.parametrize("wrong", [delta(0, 5), delta(2, 5), delta(0, 5, choice=1)])
def test_gap_repetition_and_strange_choice_are_errors(wrong):
    state = begun(delta(0, 4))
    with pytest.raises(ServingError, match="out of order") as caught:
        state.receive(wrong)
    assert (caught.value.code, caught.value.request_id) == (grpc.StatusCode.INTERNAL, "r")


def test_delta_before_started_is_an_error():
    with pytest.raises(ServingError, match="before Started"):
        StreamState(Request("hi")).receive(delta(0, 1))


def test_second_started_is_no_event_and_renews_the_key():
    state = begun(delta(0, 4))
    assert state.receive(started(key=b"k2")) is None
    assert state.next_request().spec.resume.key == b"k2"


def test_second_started_of_another_model_is_an_error():
    with pytest.raises(ServingError, match="f1 and cannot go on with f2") as caught:
        begun().receive(started("f2"))
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_text_without_new_tokens_is_received():
    state = begun(delta(0, 4))
    event = state.receive(pb.GenerateStreamResponse(delta=pb.Delta(text="rest", first_index=1)))
    assert event is not None and event.text == "rest"


def resumed_choices(state):
    return state.next_request().spec.resume.choices


def test_a_resume_names_the_numerics_of_each_choice():
    state = begun(delta(0, 4, numerics_id="a"), delta(1, 5), delta(0, 6, choice=1, numerics_id="b"), n=3)
    assert [(choice.index, choice.numerics_id) for choice in resumed_choices(state)] == [(0, "a"), (1, "b"), (2, "")]


def test_numerics_that_change_are_told_as_they_were_last():
    state = begun(delta(0, 4, numerics_id="a"), delta(1, 5, numerics_id="b"))
    assert resumed_choices(state)[0].numerics_id == "b"


def test_a_resume_marks_the_choices_that_have_ended():
    state = begun(delta(0, 4), finished(), delta(0, 6, choice=1), n=2)
    assert [(choice.index, list(choice.token_ids), choice.finished) for choice in resumed_choices(state)] == [
        (0, [4], True),
        (1, [6], False),
    ]
    assert not state.is_complete
    state.receive(finished(1))
    assert state.is_complete


def test_a_resume_gives_constraint_priority_and_salt_again():
    spec = begun(delta(0, 4), n=1, regex="a+", priority=-2, cache_salt="s", model="m").next_request().spec
    assert (spec.constraint.regex, spec.priority, spec.cache_salt, spec.model) == ("a+", -2, "s", "m")
    assert spec.WhichOneof("prompt") is None


def test_a_second_finish_is_no_event():
    state = begun(finished(), n=2)
    assert state.receive(finished()) is None


def test_prompt_logprobs_of_a_long_prompt_come_in_parts_each_once() -> None:
    def part(first: int, last: int) -> pb.GenerateStreamResponse:
        entries = [pb.TokenLogprob(token_id=token_id) for token_id in range(first, last)]
        return pb.GenerateStreamResponse(prompt_logprobs=pb.PromptLogprobs(entries=entries, first_index=first))

    asked = started()
    asked.started.num_prompt_tokens = 9
    asked.started.effective.output.prompt_logprobs = 2
    state = StreamState(Request("hi", prompt_logprobs=2))
    state.receive(asked)
    received = [state.receive(part(0, 4)), state.receive(part(4, 7))]
    assert state.next_request().spec.resume.effective.output.prompt_logprobs == 2
    received += [state.receive(part(0, 4)), state.receive(part(4, 9))]  # as after a resume
    assert [event and (event.first_index, [entry.token_id for entry in event.entries]) for event in received] == [
        (0, [0, 1, 2, 3]),
        (4, [4, 5, 6]),
        None,
        (7, [7, 8]),
    ]
    assert not state.next_request().spec.resume.effective.output.HasField("prompt_logprobs")
    with pytest.raises(ServingError, match="expected the log probability of prompt token 9, the server sent token 20"):
        state.receive(part(20, 21))


def test_prompt_logprobs_are_asked_for_again_until_they_have_come():
    asked = started()
    asked.started.effective.output.prompt_logprobs = 2
    state = StreamState(Request("hi", prompt_logprobs=2))
    state.receive(asked)
    assert state.next_request().spec.resume.effective.output.prompt_logprobs == 2
    state.receive(pb.GenerateStreamResponse(prompt_logprobs=pb.PromptLogprobs(entries=[pb.TokenLogprob(token_id=7)])))
    assert not state.next_request().spec.resume.effective.output.HasField("prompt_logprobs")
