"""Whatever a client sends is understood or refused with a documented status, and what is understood is in range."""

import asyncio
import math

from fakes.control_plane.scripted_engine import MAX_MODEL_LEN, VOCAB_SIZE, served_model
from fakes.text.chat_templates import QWEN_STYLE
from harness import request_admission as admission
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.edge.service.errors import RequestError
from control_plane.edge.text.chat_template import ChatTemplate
from control_plane.engine.ports import GenerationRequest
from pypto_serving.inference.v1 import inference_pb2 as pb

MODEL = served_model(chat_template=ChatTemplate(f"{QWEN_STYLE}{{{{ a }}}}", {}))
FLOATS = st.one_of(st.floats(width=32), st.floats(0, 1, width=32), st.floats(-2, 2, width=32))
COUNTS = st.one_of(st.integers(0, 70), st.integers(0, 2**32 - 1))
IDS = st.one_of(st.integers(0, VOCAB_SIZE - 1), COUNTS)
TEXTS = st.text(max_size=8)


def message(kind: type, **fields: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Messages of a type with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))


SAMPLING = message(
    pb.SamplingParams,
    temperature=FLOATS,
    top_p=FLOATS,
    top_k=COUNTS,
    min_p=FLOATS,
    repetition_penalty=FLOATS,
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.dictionaries(IDS, FLOATS, max_size=3),
)
STOPPING = message(
    pb.StoppingParams,
    max_tokens=COUNTS,
    min_tokens=COUNTS,
    stop=st.lists(TEXTS, max_size=3),
    stop_token_ids=st.lists(IDS, max_size=3),
    ignore_eos=st.booleans(),
    include_stop=st.booleans(),
)
OUTPUT = message(
    pb.OutputOptions,
    skip_special_tokens=st.booleans(),
    logprobs=st.booleans(),
    top_logprobs=COUNTS,
    prompt_logprobs=COUNTS,
    stream_interval=COUNTS,
)
JSON_TEXTS = st.one_of(TEXTS, st.sampled_from(['{"a": 1}', "[]", "{"]))
CALLS = st.lists(message(pb.ToolCall, id=TEXTS, name=TEXTS, arguments=JSON_TEXTS), max_size=2)
TEMPLATE_VALUES = st.one_of(
    message(pb.TemplateValue, bool_value=st.booleans()),
    message(pb.TemplateValue, double_value=st.floats()),
    message(pb.TemplateValue, string_value=TEXTS),
)
CHAT = message(
    pb.Chat,
    messages=st.lists(message(pb.ChatMessage, role=TEXTS, content=TEXTS, name=TEXTS, tool_call_id=TEXTS, tool_calls=CALLS), max_size=3),
    tools=st.lists(message(pb.Tool, name=TEXTS, description=TEXTS, parameters_schema=JSON_TEXTS), max_size=2),
    template_arguments=st.dictionaries(st.one_of(TEXTS, st.sampled_from(["a", "messages", "bos_token"])), TEMPLATE_VALUES, max_size=2),
    add_generation_prompt=st.booleans(),
)
PROMPT = st.one_of(
    TEXTS.map(lambda text: {"text": text}),
    st.lists(IDS, max_size=5).map(lambda ids: {"token_ids": pb.TokenIds(ids=ids)}),
    CHAT.map(lambda chat: {"chat": chat}),
    st.just({}),
)
ENVELOPE = st.fixed_dictionaries(
    {},
    optional={"request_id": TEXTS, "n": COUNTS, "priority": st.integers(-(2**31), 2**31 - 1), "cache_salt": TEXTS},
)
PARTS = st.fixed_dictionaries({}, optional={"sampling": SAMPLING, "stopping": STOPPING, "output": OUTPUT})


async def admit(spec: pb.GenerationSpec) -> GenerationRequest | RequestError:
    try:
        return (await admission.admit(spec, MODEL)).request
    except RequestError as error:
        return error


@settings(deadline=None)
@given(PROMPT, ENVELOPE, PARTS)
def test_every_request_is_understood_or_refused(prompt: dict[str, object], envelope: dict[str, object], parts: dict[str, object]) -> None:
    request = asyncio.run(admit(pb.GenerationSpec(**prompt, **envelope, **parts)))
    if isinstance(request, RequestError):
        assert str(request) and "\n" not in str(request)
        return
    assert [choice.index for choice in request.choices] == list(range(envelope.get("n", 1)))
    sampling = request.choices[-1].sampling
    assert 0 < len(request.prompt_token_ids) + request.max_tokens <= MAX_MODEL_LEN
    assert max(*request.prompt_token_ids, *request.end_token_ids, 0, *(key for key, _ in sampling.logit_bias)) < VOCAB_SIZE
    assert 0 <= sampling.temperature < math.inf and 0 < sampling.top_p <= 1 and 0 <= sampling.min_p <= 1 and sampling.top_k < VOCAB_SIZE
    assert 0 < sampling.repetition_penalty < math.inf and request.min_tokens <= request.max_tokens
