"""The model's tokenizer, by `tokenizers` alone: transformers would import torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tokenizers

from control_plane.edge.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, tail_bytes
from control_plane.edge.text.token_bytes import TokenBytes, byte_rule, byte_tokens


class TokenizerFailed(Exception):
    """The library gave a text or tokens up, such as a run of millions of blanks; the message is its own."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """A panic of the library is no Exception in Python: nobody would take it for the failure of one text."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise TokenizerFailed(str(error) or type(error).__name__) from error


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids and, if asked for, where each begins and ends in the text, in code points; (0, 0) for special tokens that were added."""

    token_ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Encodes, decodes, and makes detokenizers. Its methods may be called on any thread.

    `special_tokens` are the roles of tokenizer_config.json, such as bos_token.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        #: No token of a prompt stands for more characters. Special tokens count by their name, as a text may spell them out.
        self.max_token_characters = max(map(len, tokenizer.get_vocab()), default=1)
        bos_token = special_tokens.get("bos_token")
        self._bos_token_id = None if bos_token is None else tokenizer.token_to_id(bos_token)
        added = tokenizer.get_added_tokens_decoder()
        #: Tokens that are no part of the model's own vocabulary, special or not, by id.
        self.added_tokens: Mapping[int, str] = {token_id: token.content for token_id, token in added.items()}
        #: Those of them that no output shows.
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        decoder = json.loads(tokenizer.to_str())["decoder"]
        self._rule = rule = byte_rule(decoder)
        self._byte_tokens = byte_tokens(tokenizer, decoder)
        to_bytes = rule.to_bytes if rule else str.encode
        added_bytes = {token_id: rule.added_to_bytes(text) for token_id, text in self.added_tokens.items()} if rule else {}
        self._token_bytes = TokenBytes(tokenizer, to_bytes, added_bytes)
        self._visible_bytes = TokenBytes(tokenizer, to_bytes, added_bytes | dict.fromkeys(self.special_ids, b""))

    @property
    def has_token_bytes(self) -> bool:
        """Whether a text is the concatenation of its tokens' bytes."""
        return self._rule is not None

    def special_tokens_in(self, text: str) -> dict[str, int]:
        """Special tokens that a text contains, and their ids."""
        return {name: token_id for token_id in self.special_ids if (name := self.added_tokens[token_id]) in text}

    def id_of(self, token: str) -> int | None:
        """Id of a token, or None when there is no such token."""
        return self._tokenizer.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool, with_offsets: bool = False) -> Encoding:
        """Encode a text. The tokenizer's rule for special tokens adds no BOS to a text that begins with one. Raises TokenizerFailed."""
        # The plain `encode` holds the interpreter lock, which would stop every thread during a long text; batches do not.
        encode = self._tokenizer.encode_batch if with_offsets else self._tokenizer.encode_batch_fast
        with panics_as_errors():
            encoded = encode([text], add_special_tokens=add_special_tokens)[0]
        token_ids, offsets = encoded.ids, encoded.offsets if with_offsets else []
        if token_ids[:2] == [self._bos_token_id] * 2 and add_special_tokens:
            del token_ids[0], offsets[:1]
        return Encoding(token_ids, offsets)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of token ids; ids without a token have none. What a detokenizer makes of the same tokens; raises TokenizerFailed."""
        detokenizer = self.detokenizer((), skip_special_tokens)
        pieces = [detokenizer.push(token_id) for token_id in token_ids]
        return "".join(pieces) + detokenizer.finish()

    def renamed(self, names: Mapping[int, str]) -> "Tokenizer":
        """A tokenizer whose added tokens have other names and maybe other ids; the names that they have here are plain text to it.

        It takes no memory for the vocabulary, which is shared.
        """
        other = tokenizers.Tokenizer(self._tokenizer.model)
        other.normalizer, other.pre_tokenizer = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        added = self._tokenizer.get_added_tokens_decoder()
        options = ("special", "normalized", "single_word", "lstrip", "rstrip")
        for token_id, name in names.items():
            token = tokenizers.AddedToken(name, **{option: getattr(added[token_id], option) for option in options})
            (other.add_special_tokens if token.special else other.add_tokens)([token])
        return Tokenizer(other, {})

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, special tokens included."""
        return self._token_bytes[token_id]

    def detokenizer(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """A detokenizer for what follows a prompt; it, and this, may raise TokenizerFailed."""
        if self._rule is None:
            return WindowDetokenizer(lambda ids: self._library_text(ids, skip_special_tokens), self._byte_tokens, prompt_token_ids)
        table = self._visible_bytes if skip_special_tokens else self._token_bytes
        tail = tail_bytes(table, prompt_token_ids)
        return ByteDetokenizer(table, None if tail else self._rule.at_start, tail)

    def _library_text(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        hidden = self.special_ids if skip_special_tokens else frozenset()
        if all(token_id in hidden or self._tokenizer.id_to_token(token_id) is None for token_id in token_ids):
            return ""  # some decoders panic where there is nothing to decode
        with panics_as_errors():
            return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
