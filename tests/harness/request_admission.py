"""Admission of requests to the fake model, whose length is known."""

import pytest
from fakes.control_plane.scripted_engine import MAX_MODEL_LEN, compiler_of, served_model

from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.admission.admission import Admission, AdmittedRequest
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.prompt import PromptEncoder
from control_plane.edge.service.admission.resume import Replayer
from control_plane.edge.service.errors import RequestError
from pypto_serving.inference.v1 import inference_pb2 as pb


async def admit(spec: pb.GenerationSpec, model: ServedModel | None = None, max_model_len: int = MAX_MODEL_LEN) -> AdmittedRequest:
    """Understand a request; raises a RequestError."""
    model = model or served_model()
    limit = ContextLimit(1.0, 1)
    limit.set(max_model_len)
    encoder, replayer = PromptEncoder(model), Replayer()
    try:
        return await Admission(model, encoder, compiler_of(model), replayer, limit).admit(spec, spec.request_id or "drawn")
    finally:
        encoder.close()
        replayer.close()


async def refusal(spec: pb.GenerationSpec, model: ServedModel | None = None, max_model_len: int = MAX_MODEL_LEN) -> RequestError:
    """Why a request is refused."""
    with pytest.raises(RequestError) as caught:
        await admit(spec, model, max_model_len)
    return caught.value


def prompt_ids(*token_ids: int) -> pb.TokenIds:
    """A prompt of token ids."""
    return pb.TokenIds(ids=token_ids)
