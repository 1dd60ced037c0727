"""Incremental detokenization: token ids in, complete characters out."""

from codecs import utf_8_decode
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from control_plane.edge.text.token_bytes import TokenBytes

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Turns the tokens that follow a prompt into text. What it returns, joined, is the text of everything minus that of the prompt."""

    def push(self, token_id: int) -> str:
        """Take one more token; returns the characters that are complete now."""

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Take many tokens; returns what pushing one after the other would, joined."""

    def finish(self) -> str:
        """Return what is left; an unfinished character becomes U+FFFD."""


class Pieces(Protocol):
    """The bytes that each token adds to a text."""

    def __getitem__(self, token_id: int, /) -> bytes:
        """Bytes of a token."""


class ByteDetokenizer:
    """For tokenizers whose text is the concatenation of their tokens' bytes.

    Invalid bytes become what `bytes.decode("utf-8", "replace")` makes of them, as soon as they cannot become valid any more. A character
    that the prompt left unfinished is completed by the output, or left to the prompt.
    """

    __slots__ = ("_at_boundary", "_at_start", "_pending", "_table")

    def __init__(self, table: Pieces, at_start: Callable[[bytes], bytes] | None, prompt_tail: bytes) -> None:
        """`at_start`: what remains of the first piece, where the prompt has no text. `prompt_tail`: last bytes of the prompt."""
        self._table = table
        self._at_start = at_start
        self._pending = _decode(prompt_tail)[1]
        self._at_boundary = self._at_start is not None or bool(self._pending)

    def push(self, token_id: int) -> str:
        """Add the bytes of a token; returns the characters that are complete now."""
        return self._add(self._table[token_id])

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Add the bytes of many tokens at once, those at the seam one by one."""
        seam = ""
        for count, token_id in enumerate(token_ids):
            if not self._at_boundary:
                return seam + self._add(b"".join(map(self._table.__getitem__, token_ids[count:])))
            seam += self.push(token_id)
        return seam

    def _add(self, piece: bytes) -> str:
        if self._at_boundary:
            return self._cross_boundary(piece)
        if self._pending:
            piece = self._pending + piece
        text, self._pending = _decode(piece)
        return text

    def finish(self) -> str:
        """Return what is left; an unfinished character becomes U+FFFD, unless the prompt began it."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text.removeprefix(_REPLACEMENT) if self._at_boundary else text

    def _cross_boundary(self, piece: bytes) -> str:
        """The first piece of a text may lose a blank, and U+FFFD of the prompt's unfinished character is not ours."""
        if self._at_start is not None and piece:
            piece = self._at_start(piece)
            self._at_start = None
        continues_prompt = bool(self._pending)
        text, self._pending = _decode(self._pending + piece)
        if not text:
            self._at_boundary = self._at_start is not None or continues_prompt
            return ""
        self._at_boundary = False
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


def tail_bytes(table: TokenBytes, token_ids: Sequence[int]) -> bytes:
    """The last bytes of a text, as many as an unfinished character can have; empty only if the whole text is."""
    tail = b""
    for token_id in reversed(token_ids):
        tail = table[token_id] + tail
        if len(tail) >= 3:
            break
    return tail[-3:]


class WindowDetokenizer(ByteDetokenizer):
    """For any other tokenizer: the library decodes a short window of tokens, and what the last one adds is its piece.

    The rules for bytes are the same: `byte_tokens` are those that stand for one byte, which the library would only decode all together.
    """

    __slots__ = ("_window",)

    def __init__(self, decode: Callable[[Sequence[int]], str], byte_tokens: Mapping[int, bytes], prompt_token_ids: Sequence[int]) -> None:
        self._window = _Window(decode, byte_tokens, prompt_token_ids)
        super().__init__(self._window, None, _tail_of_bytes(byte_tokens, prompt_token_ids))

    def finish(self) -> str:
        """Return what the window and the bytes still hold back."""
        return self._add(self._window.rest()) + super().finish()


def _tail_of_bytes(byte_tokens: Mapping[int, bytes], token_ids: Sequence[int]) -> bytes:
    tail = b""
    for token_id in reversed(token_ids[-3:]):
        if token_id not in byte_tokens:
            break
        tail = byte_tokens[token_id] + tail
    return tail


class _Window:
    """Pieces of the tokens that follow a prompt, each asked for once and in order."""

    _CONTEXT_TOKENS = 8
    _MAX_HELD_TOKENS = 4  # no character has more bytes

    def __init__(self, decode: Callable[[Sequence[int]], str], byte_tokens: Mapping[int, bytes], prompt_token_ids: Sequence[int]) -> None:
        self._decode = decode
        self._byte_tokens = byte_tokens
        self._ids = list(prompt_token_ids[-self._CONTEXT_TOKENS :])
        shown = decode(self._ids)
        ends_in_bytes = bool(self._ids) and self._ids[-1] in byte_tokens
        self._shown = shown if ends_in_bytes else shown.rstrip(_REPLACEMENT)
        self._unfinished = shown[len(self._shown) :]  # what the library writes for a character that the prompt left unfinished
        self._num_held = 0

    def __getitem__(self, token_id: int) -> bytes:
        byte = self._byte_tokens.get(token_id)
        if byte is not None:
            held = self.rest()
            self._ids.append(token_id)
            self._slide()
            return held + byte
        self._ids.append(token_id)
        self._num_held += 1
        text = self._decode(self._ids)
        if not text.startswith(self._shown) or (text.endswith(_REPLACEMENT) and self._num_held < self._MAX_HELD_TOKENS):
            return b""
        return self._release(text)

    def rest(self) -> bytes:
        """What was held back."""
        return self._release(self._decode(self._ids)) if self._num_held else b""

    def _release(self, text: str) -> bytes:
        piece = text[len(self._shown) :].removeprefix(self._unfinished)
        self._unfinished = ""
        self._slide()
        return piece.encode()

    def _slide(self) -> None:
        del self._ids[: -self._CONTEXT_TOKENS]
        self._shown = self._decode(self._ids)
        self._num_held = 0
