"""Tokenizers made in code.

Byte tokenizer: id b is byte b, then BOS 256, EOS 257, EOT 258, PAD 259, <think> 260, </think> 261.
Piece tokenizer: SentencePiece style, with byte fallback and a blank that the decoder drops at the start of a text.
"""

import threading
from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from control_plane.edge.text.token_bytes import _ALPHABET
from control_plane.edge.text.tokenizer import Encoding, Tokenizer

BOS, EOS, EOT, PAD, THINK, END_THINK = range(256, 262)
SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


def byte_tokenizer(adds_bos: bool = False) -> Tokenizer:
    """One token per byte."""
    inner = tokenizers.Tokenizer(models.BPE(dict(_ALPHABET), []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<bos>", "<eos>", "<eot>", "<pad>"])
    inner.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    if adds_bos:
        inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return Tokenizer(inner, SPECIAL_TOKENS)


def piece_tokenizer(pieces: Sequence[str]) -> Tokenizer:
    """Ids 0 to 2 are <unk>, <bos>, <eos>; then 256 bytes, then the pieces."""
    inner = raw_piece_tokenizer(pieces)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]  # Llama 2
    )
    return Tokenizer(inner, SPECIAL_TOKENS)


def raw_piece_tokenizer(pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """The vocabulary of `piece_tokenizer`, without a decoder."""
    vocabulary = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    inner = tokenizers.Tokenizer(
        models.BPE({piece: index for index, piece in enumerate(vocabulary)}, [], unk_token="<unk>", byte_fallback=True)
    )
    inner.add_special_tokens(["<unk>", "<bos>", "<eos>"])
    return inner


def piece_id(index: int) -> int:
    """Id of the piece number `index`."""
    return 3 + 256 + index


def byte_piece_id(byte: int) -> int:
    """Id of the byte token of the piece tokenizer."""
    return 3 + byte


def panicking_tokenizer() -> tokenizers.Tokenizer:
    """A byte per token, as in the byte tokenizer. The library panics on a text of forty times "a" and more, and where "b" is decoded."""
    inner = tokenizers.Tokenizer(models.BPE(dict(_ALPHABET), []))
    endless = pre_tokenizers.Split(tokenizers.Regex("(?:a|aa)+[^a]"), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([endless, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    inner.decoder = decoders.Sequence([decoders.Replace("b", ""), decoders.Strip(" ", 0, 1)])  # on an empty piece
    inner.add_special_tokens(["<a long name>"])
    return inner


class BlockedTokenizer(Tokenizer):
    """The byte tokenizer without special tokens; texts of more than 1000 characters are encoded once `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(byte_tokenizer()._tokenizer, SPECIAL_TOKENS)
        self.go_on = threading.Event()
        self.num_long_texts = 0  # begun

    def encode(self, text: str, add_special_tokens: bool, with_offsets: bool = False) -> Encoding:
        """A long text waits for `go_on`, and has a token for each character."""
        if len(text) <= 1000:
            return super().encode(text, add_special_tokens, with_offsets)
        self.num_long_texts += 1
        assert self.go_on.wait(60)
        return Encoding([7] * len(text), [])
