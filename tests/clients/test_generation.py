import grpc
import pytest

from clients.errors import ServingError
from clients.generation import Generation
from clients.request import Request
from pypto_serving.inference.v1 import inference_pb2 as pb


def started(fingerprint="f1", key=b"k1"):
    return pb.GenerateStreamResponse(
        started=pb.Started(request_id="r", model_fingerprint=fingerprint, resume_key=key, effective=pb.EffectiveParameters(n=1))
    )


def delta(first_index, *ids, choice=0):
    return pb.GenerateStreamResponse(delta=pb.Delta(choice=choice, first_index=first_index, token_ids=ids))


def begun(*responses):
    generation = Generation(Request("hi"))
    for response in (started(), *responses):
        generation.take(response)
    return generation


@pytest.mark.parametrize("wrong", [delta(0, 5), delta(2, 5), delta(0, 5, choice=1)])
def test_gap_repetition_and_strange_choice_are_errors(wrong):
    generation = begun(delta(0, 4))
    with pytest.raises(ServingError, match="out of order") as caught:
        generation.take(wrong)
    assert (caught.value.code, caught.value.request_id) == (grpc.StatusCode.INTERNAL, "r")


def test_delta_before_started_is_an_error():
    with pytest.raises(ServingError, match="before Started"):
        Generation(Request("hi")).take(delta(0, 1))


def test_second_started_is_no_event_and_renews_the_key():
    generation = begun(delta(0, 4))
    assert generation.take(started(key=b"k2")) is None
    assert generation.next_request().spec.resume.key == b"k2"


def test_second_started_of_another_model_is_an_error():
    with pytest.raises(ServingError, match="f1 and can not go on with f2") as caught:
        begun().take(started("f2"))
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_text_without_new_tokens_is_taken():
    generation = begun(delta(0, 4))
    event = generation.take(pb.GenerateStreamResponse(delta=pb.Delta(text="rest", first_index=1)))
    assert event is not None and event.text == "rest"
