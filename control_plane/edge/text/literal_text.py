"""Texts of clients that are only text: special tokens that they spell out stay text, those that the chat template writes are tokens."""

import re
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from control_plane.edge.text.chat_template import Conversation
from control_plane.edge.text.message_shapes import Message, mapped
from control_plane.edge.text.tokenizer import Encoding, Tokenizer

#: Marks around what is to stay text, and names that added tokens have while they are told apart: nobody outside can know or guess them.
_NONCE_BYTES = 8


class LiteralTexts:
    """Marks spelled out tokens in conversations, and encodes what a template makes of them. Its methods may be called on any thread.

    Between marking and encoding nothing but the template sees the marks. For the encoding the added tokens that the template has written
    get secret names in the text and in a copy of the tokenizer, so that nothing else is one, and text is cut into tokens as it always is.
    """

    def __init__(self, tokenizer: Tokenizer, template_texts: str) -> None:
        """`template_texts`: what the template can write; tokens that are not special are protected if they are among it."""
        begin, end, prefix = (secrets.token_hex(_NONCE_BYTES) for _ in range(3))
        added, special = tokenizer.added_tokens, tokenizer.special_ids
        controls = {text for token_id, text in added.items() if token_id in special or (text in template_texts and not text.isspace())}
        self._mark = f"{begin}\\g<0>{end}"
        self._special = re.compile(_any_of(added[token_id] for token_id in special))
        self._controls = re.compile(_any_of(controls))
        self._parts = re.compile(f"{begin}(?P<text>{_any_of(controls)}){end}|{begin}|{end}|(?P<token>{_any_of(added.values())})")
        self._names = {text: f"{prefix}{token_id}e" for token_id, text in added.items()}
        self._renamed = tokenizer.renamed({token_id: self._names[text] for token_id, text in added.items()})
        self._ids = {self._renamed.id_of(self._names[text]): token_id for token_id, text in added.items()}

    def marked(self, conversation: Conversation) -> Conversation:
        """The conversation with marks around what must stay text; keys of objects are left alone.

        A turn of the assistant was written by the model, so that only special tokens, which no output shows, are text in it.
        """
        return replace(
            conversation,
            messages=[self._message(message) for message in conversation.messages],
            tools=self._protected(conversation.tools),
            documents=self._protected(conversation.documents),
            arguments=self._protected(conversation.arguments),
        )

    def encode(self, text: str, with_offsets: bool) -> Encoding:
        """Encode what a template has written; offsets are those in the text without marks. Raises TokenizerFailed."""
        pieces = list(self._pieces(text))
        encoding = self._renamed.encode("".join([written for written, _ in pieces]), add_special_tokens=False, with_offsets=with_offsets)
        written_at, plain_at = ([0, *accumulate(map(len, side))] for side in zip(*pieces, strict=True))

        def place(offset: int) -> int:
            index = bisect_right(written_at, offset, hi=len(pieces)) - 1
            written, plain = pieces[index]
            return plain_at[index] + (offset - written_at[index] if written == plain else 0)

        token_ids = [self._ids.get(token_id, token_id) for token_id in encoding.token_ids]
        return Encoding(token_ids, [(place(begin), place(end)) for begin, end in encoding.offsets])

    def _pieces(self, text: str) -> Iterator[tuple[str, str]]:
        """What is encoded, and what it stands for in the text without marks."""
        position = 0
        for part in self._parts.finditer(text):
            yield (text[position : part.start()],) * 2
            yield (self._names[part["token"]], part["token"]) if part["token"] else (part["text"] or "",) * 2
            position = part.end()
        yield (text[position:],) * 2

    def _message(self, message: Message) -> Message:
        pattern = self._special if message["role"] == "assistant" else self._controls
        return {name: mapped(value, lambda text: pattern.sub(self._mark, text)) for name, value in message.items()}

    def _protected(self, value: Sequence[Message] | Mapping[str, Any]) -> Any:
        return mapped(value, lambda text: self._controls.sub(self._mark, text))


def _any_of(texts: Iterable[str]) -> str:
    """A pattern of the longest of several texts; the tokenizer, too, prefers it."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"
