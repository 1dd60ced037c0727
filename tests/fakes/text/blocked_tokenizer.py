"""A tokenizer that takes as long as a test wants."""

import threading

from fakes.text.tokenizers import SPECIAL_TOKENS, byte_tokenizer

from control_plane.edge.text.tokenizer import Encoding, Tokenizer


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
