"""Turns prompts into token ids without holding the event loop up."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from control_plane.edge.served_model import ServedModel
from control_plane.edge.service.admission.chat_reader import check_chat, conversation_of
from control_plane.edge.service.admission.prompt_limit import PromptLimit
from control_plane.edge.service.errors import FailedPrecondition, InvalidArgument
from control_plane.edge.text.chat_template import ChatTemplate, TemplateRefused
from control_plane.edge.text.literal_text import LiteralTexts
from control_plane.edge.text.tokenizer import Encoding, TokenizerFailed
from pypto_serving.inference.v1 import inference_pb2

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Shorter texts are encoded faster than they are handed to a thread.
_INLINE_CHARACTERS = 1000

#: Texts that have more for every token of the limit rarely fit, and can take gigabytes: they are counted in parts before they are encoded.
_USUAL_CHARACTERS_PER_TOKEN = 4
_PART_CHARACTERS = 1 << 16


class PromptEncoder:
    """Encodes texts and chats; long ones on threads of its own. Used on the clients' event loop."""

    def __init__(self, model: ServedModel, num_threads: int = 2) -> None:
        self._tokenizer = model.tokenizer
        self._template = model.chat_template
        self._literal_texts: dict[str, LiteralTexts] = {}  # by what the template can write
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._compilers = ThreadPoolExecutor(num_threads, thread_name_prefix="constraint")  # may be busy for seconds

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._compilers.shutdown(wait=False, cancel_futures=True)

    async def text(self, text: str, limit: PromptLimit, add_special_tokens: bool = True, with_offsets: bool = False) -> Encoding:
        """Encode plain text; raises a RequestError when it is too long."""
        limit.check_characters("text", len(text))
        return await self._encode("text", text, limit, lambda part: self._tokenizer.encode(part, add_special_tokens, with_offsets))

    async def chat(self, chat: inference_pb2.Chat, path: str, limit: PromptLimit, with_offsets: bool = False) -> Encoding:
        """Render a conversation and encode it; the template writes all special tokens. Raises a RequestError."""
        check_chat(chat, path, limit)
        if self._template is None:
            raise FailedPrecondition(
                f"{path}: the model has no chat template; send the prompt as text, or start the server with --chat-template FILE"
            )
        if chat.tools and not self._template.knows_tools:
            raise InvalidArgument(f"{path}.tools is set, must be absent: the model's chat template does not know tools")
        if chat.documents and not self._template.knows_documents(beside_tools=bool(chat.tools)):
            raise InvalidArgument(f"{path}.documents is set, must be absent: the model's chat template does not know documents")
        literal = await self._literal(self._template.texts(bool(chat.tools))) if chat.literal_text else None
        text = await self.run(chat.ByteSize(), _render, self._template, chat, path, limit, literal)
        if literal:
            return await self._encode(path, text, limit, lambda part: literal.encode(part, with_offsets))
        return await self._encode(path, text, limit, lambda part: self._tokenizer.encode(part, False, with_offsets))

    async def detokenize(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """Text of token ids."""
        try:
            return await self.run(len(token_ids), self._tokenizer.decode, token_ids, skip_special_tokens)
        except TokenizerFailed as error:
            raise InvalidArgument(f"token_ids: the model's tokenizer fails on them: {error}") from None

    async def compile(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a function that makes constraints, on a thread on which no prompt waits."""
        return await asyncio.get_running_loop().run_in_executor(self._compilers, lambda: function(*args, **kwargs))

    async def run(self, size: int, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a function whose cost grows with `size`, on a thread if that is much."""
        if size <= _INLINE_CHARACTERS:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def _literal(self, template_texts: str) -> LiteralTexts:
        if template_texts not in self._literal_texts:
            made = await asyncio.get_running_loop().run_in_executor(self._threads, LiteralTexts, self._tokenizer, template_texts)
            self._literal_texts[template_texts] = made
        return self._literal_texts[template_texts]

    async def _encode(self, field: str, text: str, limit: PromptLimit, encode: Callable[[str], Encoding]) -> Encoding:
        try:
            if len(text) > limit.tokens * _USUAL_CHARACTERS_PER_TOKEN:
                await self.run(len(text), _check_in_parts, encode, field, text, limit)
            return await self.run(len(text), encode, text)
        except TokenizerFailed as error:
            raise InvalidArgument(f"{field}: the model's tokenizer fails on it: {error}") from None


def _render(template: ChatTemplate, chat: inference_pb2.Chat, path: str, limit: PromptLimit, literal: LiteralTexts | None) -> str:
    conversation = conversation_of(chat, path)
    try:
        text = template.render(literal.marked(conversation) if literal else conversation)
    except TemplateRefused as error:
        raise InvalidArgument(f"{path}.messages: the chat template refuses them: {error}") from None
    limit.check_characters(f"{path}, rendered,", len(text))
    return text


def _check_in_parts(encode: Callable[[str], Encoding], field: str, text: str, limit: PromptLimit) -> None:
    """Refuse a text that surely has too many tokens. A cut adds a few tokens, far fewer than the half that is not counted."""
    num_tokens = 0
    for start in range(0, len(text), _PART_CHARACTERS):
        num_tokens += len(encode(text[start : start + _PART_CHARACTERS]).token_ids)
        limit.check_tokens(field, num_tokens // 2)
