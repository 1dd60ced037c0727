"""What a caller asks for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as WireMessage

from clients.conversation import MessageLike, TemplateValue, Tool, chat_prompt
from clients.errors import invalid
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.wire.traceparent import TRACEPARENT, read_traceparent


@dataclass(frozen=True, slots=True)
class Request:
    """One generation request. Give exactly one of `prompt`, `messages` and `token_ids`; None leaves a field to the server's default.

    What is asked:
      prompt                  text, sent as it is
      messages                a conversation for the model's chat template: `Message`, or mappings with its fields
      token_ids               the prompt as token ids
    For the chat template:
      tools                   functions that the model may call
      template_arguments      arguments of the template by name, such as enable_thinking
      documents               documents to answer from, with the fields that the template knows
      add_generation_prompt   begin an answer after the last message
      continue_final_message  go on with the last message, which is the beginning of the answer
      literal_text            special tokens that the messages spell out are only text
    When it ends:
      max_tokens, min_tokens  most tokens to generate, and least before anything may stop them
      stop, stop_token_ids    texts and tokens that end a choice
      ignore_eos              go on after the model's end tokens
      include_stop            leave the stop text in the answer
    How tokens are chosen:
      temperature             0 always takes the most likely token
      top_p, top_k, min_p     keep likely tokens only: by summed probability, by number, relative to the most likely one
      repetition_penalty      above 1 discourages what occurs in prompt and output
      presence_penalty, frequency_penalty  subtracted from tokens of the output, once or per occurrence
      seed                    the same seed gives the same tokens
      logit_bias              added to the logits of tokens, by id
    What comes back:
      skip_special_tokens     leave special tokens out of the text
      logprobs, top_logprobs  log probabilities of the tokens, and of so many others at each place
      prompt_logprobs         the same for the prompt, with so many others
      stream_interval         tokens per event
    What the text must be (at most one of them):
      json_schema, regex, alternatives, grammar  a JSON schema, a regular expression, one of several texts, a grammar in Lark notation
    Apart from the text:
      n                       number of choices
      priority                lower runs first
      cache_salt              only requests with the same salt share cached prefixes
      request_id              a name for the request, in logs and for `abort`
      model                   name of the model; empty: the one that is served
      traceparent             the trace that the request belongs to (W3C Trace Context)
      timeout                 seconds for the whole request, reconnections included
    """

    prompt: str | None = None
    _: KW_ONLY
    messages: Sequence[MessageLike] | None = None
    token_ids: Sequence[int] | None = None

    tools: Sequence[Tool] = ()
    template_arguments: Mapping[str, TemplateValue] | None = None
    documents: Sequence[Mapping[str, TemplateValue]] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    literal_text: bool | None = None

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None
    include_stop: bool | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = None

    skip_special_tokens: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream_interval: int | None = None

    json_schema: str | None = None
    regex: str | None = None
    alternatives: Sequence[str] | None = None
    grammar: str | None = None

    n: int | None = None
    priority: int = 0
    cache_salt: str = ""
    request_id: str = ""
    model: str = ""
    timeout: float | None = None
    traceparent: str = ""


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")
_STOPPING = ("max_tokens", "min_tokens", "ignore_eos", "include_stop")
_OUTPUT = ("skip_special_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "stream_interval")
_CHAT = ("add_generation_prompt", "continue_final_message", "literal_text")
_CONSTRAINT = ("json_schema", "regex", "grammar")
#: Whole numbers that a field of the wire holds, by its type.
_RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
_OTHERS = ("n", "priority", "cache_salt", "request_id", "model")

# Beyond it gRPC takes a deadline for one that has passed.
_MAX_TIMEOUT_SECONDS = 1e9

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
V = TypeVar("V")


def taking_request(make: Callable[P, Request]) -> Callable[[Callable[[S, Request], R]], Callable[Concatenate[S, P], R]]:
    """Turn a method that takes a Request into one that takes its fields, typed as Request's constructor is."""

    def decorate(method: Callable[[S, Request], R]) -> Callable[Concatenate[S, P], R]:
        def call(self: S, /, *args: P.args, **fields: P.kwargs) -> R:
            return method(self, make(*args, **fields))

        call.__name__, call.__qualname__, call.__doc__ = method.__name__, method.__qualname__, _explained(method)
        call.__module__ = method.__module__
        vars(call)["__signature__"] = _signature(method, make)  # what help() and editors show
        return call

    return decorate


def _explained(method: Callable[..., object]) -> str:
    """What `method` says of itself, and what Request says of its fields."""
    _, _, fields = (inspect.getdoc(Request) or "").partition("\n\n")
    return f"{inspect.getdoc(method)}\n\n{fields}"


def _signature(method: Callable[..., object], make: Callable[..., Request]) -> inspect.Signature:
    """That of `method`, with the parameters of `make` in the place of its request."""
    own = inspect.signature(method)
    return own.replace(parameters=[own.parameters["self"], *inspect.signature(make).parameters.values()])


def call_metadata(request: Request) -> tuple[tuple[str, str], ...]:
    """What is sent beside the request, in every attempt; raises ServingError (INVALID_ARGUMENT)."""
    if not request.traceparent:
        return ()
    if read_traceparent(request.traceparent) is None:
        raise invalid(f"traceparent: {request.traceparent[:80]!r} is none of W3C Trace Context, such as 00-TRACE-SPAN-01 in hexadecimal")
    return ((TRACEPARENT, request.traceparent),)


def generation_spec(request: Request) -> pb.GenerationSpec:
    """The request on the wire; raises ServingError (INVALID_ARGUMENT) naming the field that does not fit there."""
    timeout = request.timeout
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= _MAX_TIMEOUT_SECONDS):  # false for NaN
        raise invalid(f"timeout: {timeout!r} is not a number of seconds above 0 and up to {_MAX_TIMEOUT_SECONDS:g}")
    spec = pb.GenerationSpec()
    _set_prompt(spec, request)
    _copy(request, spec, _OTHERS)
    _copy(request, spec.sampling, _SAMPLING)
    _copy(request, spec.stopping, _STOPPING)
    _copy(request, spec.output, _OUTPUT)
    # Without them a broken stream cannot be resumed.
    spec.output.prompt_token_ids = True
    for token_id, bias in (request.logit_bias or {}).items():
        _guard("logit_bias", (token_id, bias), lambda entry: spec.sampling.logit_bias.update([entry]))
    _guard("stop", [request.stop] if isinstance(request.stop, str) else request.stop, spec.stopping.stop.extend)
    _guard("stop_token_ids", request.stop_token_ids, spec.stopping.stop_token_ids.extend)
    _set_constraint(spec, request)
    return spec


def _set_prompt(spec: pb.GenerationSpec, request: Request) -> None:
    given = [name for name in ("prompt", "messages", "token_ids") if getattr(request, name) is not None]
    if len(given) != 1:
        raise invalid(f"give exactly one of prompt, messages and token_ids, not {' and '.join(given) or 'none'}")
    if request.prompt is not None:
        _guard("prompt", request.prompt, partial(setattr, spec, "text"))
        _refuse_template_fields(request)
    elif request.messages is not None:
        spec.chat.CopyFrom(chat_prompt(request.messages, request.tools, request.template_arguments, request.documents))
        _copy(request, spec.chat, _CHAT)
    else:
        _refuse_template_fields(request)
        spec.token_ids.SetInParent()
        _guard("token_ids", request.token_ids or (), spec.token_ids.ids.extend)


def _refuse_template_fields(request: Request) -> None:
    for name in ("tools", "template_arguments", "documents", "continue_final_message", "literal_text"):
        if getattr(request, name):
            raise invalid(f"{name}: only a chat template takes them; give messages")


def _set_constraint(spec: pb.GenerationSpec, request: Request) -> None:
    given = [name for name in (*_CONSTRAINT, "alternatives") if getattr(request, name) is not None]
    if len(given) > 1:
        raise invalid(f"give at most one of json_schema, regex, grammar and alternatives, not {' and '.join(given)}")
    if request.alternatives is not None:
        spec.constraint.alternatives.SetInParent()
        _guard("alternatives", request.alternatives, spec.constraint.alternatives.texts.extend)
    elif given:
        _copy(request, spec.constraint, given)


def _copy(request: Request, message: WireMessage, fields: Sequence[str]) -> None:
    for field in fields:
        value = getattr(request, field)
        if value is not None:
            low, high = _RANGES.get(message.DESCRIPTOR.fields_by_name[field].type, (value, value))
            if isinstance(value, int) and not low <= value <= high:
                raise invalid(f"{field} = {value}, must be from {low} to {high}")
            _guard(field, value, partial(setattr, message, field))


def _guard(field: str, value: V, assign: Callable[[V], object]) -> None:
    try:
        assign(value)
    except (TypeError, ValueError) as error:
        shown = repr(value)
        raise invalid(f"{field}: {shown if len(shown) <= 80 else shown[:77] + '...'} is not accepted: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why protobuf takes no value, with the limits where it leaves them out: those of token ids, as other numbers have been looked at."""
    low, high = _RANGES[FieldDescriptor.TYPE_UINT32]
    return f"{error}, must be from {low} to {high}" if str(error).startswith("Value out of range") else str(error)


def tokenize_request(
    text: str | None, messages: Sequence[MessageLike] | None, add_special_tokens: bool | None, with_offsets: bool
) -> pb.TokenizeRequest:
    """Exactly one of `text` and `messages` is given, else ServingError (INVALID_ARGUMENT)."""
    if (text is None) == (messages is None):
        raise invalid("give exactly one of text and messages")
    request = pb.TokenizeRequest(add_special_tokens=add_special_tokens, with_offsets=with_offsets)
    if text is not None:
        request.text = text
    else:
        request.chat.CopyFrom(chat_prompt(messages or ()))
    return request


def prompt_tokenize_request(request: Request, add_special_tokens: bool | None) -> pb.TokenizeRequest:
    """Raises ServingError (INVALID_ARGUMENT) when the prompt does not fit on the wire."""
    spec = generation_spec(request)
    tokenize = pb.TokenizeRequest(model=spec.model, add_special_tokens=add_special_tokens)
    if spec.HasField("chat"):
        tokenize.chat.CopyFrom(spec.chat)
    else:
        tokenize.text = spec.text
    return tokenize


def detokenize_request(token_ids: Sequence[int], skip_special_tokens: bool) -> pb.DetokenizeRequest:
    """Raises ServingError (INVALID_ARGUMENT) when an id is no uint32."""
    try:
        return pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
    except (TypeError, ValueError) as error:
        raise invalid(f"token_ids: {_reason(error)}") from error
