"""The bytes that each token stands for, for tokenizers whose text is the concatenation of their tokens' bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the code points from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_ALPHABET.__getitem__, token))
    except KeyError:  # the decoder takes a token with characters outside the alphabet for text
        return token.encode()


def _keep(piece: bytes) -> bytes:
    return piece


def _drop_spaces(piece: bytes) -> bytes:
    return piece.replace(b" ", b"")


def _drop_leading_space(piece: bytes) -> bytes:
    return piece.removeprefix(b" ")


@dataclass(frozen=True, slots=True)
class ByteRule:
    """How a decoder turns tokens into bytes."""

    to_bytes: Callable[[str], bytes]
    added_to_bytes: Callable[[str], bytes]  # of added tokens, whose names are no pieces of the vocabulary
    at_start: Callable[[bytes], bytes] = _keep  # what remains of the first piece of a whole text


def byte_rule(decoder: Mapping[str, Any] | None) -> ByteRule | None:
    """The rule of the decoder in a tokenizer.json, or None when it is not a concatenation of bytes."""
    parts = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return ByteRule(_byte_level, str.encode) if kinds <= {"ByteLevel", "Fuse"} else None
    if not kinds & {"ByteFallback", "Metaspace", "Replace"} or not kinds <= {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}:
        return None
    return _piece_rule(parts)


def byte_tokens(tokenizer: tokenizers.Tokenizer, decoder: Mapping[str, Any] | None) -> dict[int, bytes]:
    """The bytes of tokens such as <0xE9>, by id, if the decoder takes them for bytes."""
    parts = [] if decoder is None else decoder.get("decoders", [decoder])
    if not any(part["type"] == "ByteFallback" for part in parts):
        return {}
    ids = {byte: tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    return {token_id: bytes([byte]) for byte, token_id in ids.items() if token_id is not None}


def _piece_rule(parts: list[dict[str, Any]]) -> ByteRule | None:
    """SentencePiece style: a visible character stands for a blank, tokens such as <0xE9> for a byte."""
    replacements: list[tuple[str, str]] = []
    at_start = _keep
    has_byte_tokens = any(part["type"] == "ByteFallback" for part in parts)
    for part in parts:
        match part:
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
                replacements.append((pattern, content))
            case {"type": "Metaspace", "replacement": str(pattern), **rest}:
                replacements.append((pattern, " "))
                at_start = at_start if rest.get("prepend_scheme") == "never" else _drop_spaces
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                at_start = _drop_leading_space
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                return None

    def to_bytes(token: str) -> bytes:
        if has_byte_tokens and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        return token.encode()

    return ByteRule(to_bytes, to_bytes, at_start)


class TokenBytes(dict[int, bytes]):
    """Bytes by token id, filled as ids are asked for, but for those that are `known`; ids without a token stand for nothing."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, to_bytes: Callable[[str], bytes], known: Mapping[int, bytes]) -> None:
        super().__init__(known)
        self._tokenizer = tokenizer
        self._to_bytes = to_bytes

    def __missing__(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        piece = self[token_id] = b"" if token is None else self._to_bytes(token)
        return piece
