"""Incremental detokenization: token ids in, complete characters out."""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Protocol

from control_plane.edge.text.token_bytes import TokenBytes

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Turns the tokens that follow a prompt into text. What it returns, joined, is the text of everything minus that of the prompt."""

    def push(self, token_id: int) -> str:
        """Take one more token; returns the characters that are complete now."""

    def finish(self) -> str:
        """Return what is left; an unfinished character becomes U+FFFD."""


class ByteDetokenizer:
    """For tokenizers whose text is the concatenation of their tokens' bytes.

    Invalid bytes become what `bytes.decode("utf-8", "replace")` makes of them, as soon as they can not become valid any more. A character
    that the prompt left unfinished is completed by the output, or left to the prompt.
    """

    __slots__ = ("_at_start", "_on_seam", "_pending", "_table")

    def __init__(self, table: TokenBytes, at_start: Callable[[bytes], bytes], prompt_token_ids: Sequence[int]) -> None:
        self._table = table
        tail = _tail(table, prompt_token_ids)
        self._at_start = None if tail else at_start
        self._pending = _decode(tail)[1]
        self._on_seam = self._at_start is not None or bool(self._pending)

    def push(self, token_id: int) -> str:
        """See `Detokenizer.push`."""
        piece = self._table[token_id]
        if self._on_seam:
            return self._cross_seam(piece)
        if self._pending:
            piece = self._pending + piece
        text, self._pending = _decode(piece)
        return text

    def finish(self) -> str:
        """See `Detokenizer.finish`."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text.removeprefix(_REPLACEMENT) if self._on_seam else text

    def _cross_seam(self, piece: bytes) -> str:
        """The first piece of a text may lose a blank, and U+FFFD of the prompt's unfinished character is not ours."""
        if self._at_start is not None and piece:
            piece = self._at_start(piece)
            self._at_start = None
        continues_prompt = bool(self._pending)
        text, self._pending = _decode(self._pending + piece)
        if not text:
            self._on_seam = self._at_start is not None or continues_prompt
            return ""
        self._on_seam = False
        return text.removeprefix(_REPLACEMENT) if continues_prompt else text


def _decode(data: bytes) -> tuple[str, bytes]:
    """The text that no further byte can change, and the bytes of an unfinished character."""
    text, used = utf_8_decode(data, "replace", False)
    if used == len(data):
        return text, b""
    rest = data[used:]
    # Python takes half a surrogate for unfinished, because errors="surrogatepass" would accept it whole.
    if rest[0] == 0xED and rest[1:] >= b"\xa0":
        return text + rest.decode("utf-8", "replace"), b""
    return text, rest


def _tail(table: TokenBytes, token_ids: Sequence[int]) -> bytes:
    """The last bytes of a text, as many as an unfinished character can have; empty only if the whole text is."""
    tail = b""
    for token_id in reversed(token_ids):
        tail = table[token_id] + tail
        if len(tail) >= 3:
            break
    return tail[-3:]


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window of tokens and returns what the last one added."""

    _CONTEXT_TOKENS = 8
    _MAX_HELD_TOKENS = 4  # no character has more bytes

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(prompt_token_ids[-self._CONTEXT_TOKENS :])
        self._shown = decode(self._window)
        self._num_held = 0

    def push(self, token_id: int) -> str:
        """See `Detokenizer.push`."""
        self._window.append(token_id)
        self._num_held += 1
        text = self._decode(self._window)
        if not text.startswith(self._shown) or (text.endswith(_REPLACEMENT) and self._num_held < self._MAX_HELD_TOKENS):
            return ""
        return self._release(text)

    def finish(self) -> str:
        """See `Detokenizer.finish`."""
        return self._release(self._decode(self._window))

    def _release(self, text: str) -> str:
        piece = text[len(self._shown) :]
        del self._window[: -self._CONTEXT_TOKENS]
        self._shown = self._decode(self._window)
        self._num_held = 0
        return piece
