"""Compiles one grammar in a process of its own, which may be killed by it. Run as a script: no import of ours, so that it starts fast.

The compiler overflows the stack on some grammars and takes hours on others; neither can be caught in a thread.

stdin, as JSON: {"path": [where modules are found], "grammar", "limits", "vocab_size", "special_tokens": {id: name}, "cpu_seconds",
"memory_bytes", "stack_bytes"}.
stdout: {"error": text or null, "warnings": [text]} as JSON.
"""

import importlib
import json
import resource
import sys
import threading
from typing import Any


class TrialTokens:
    """Stands for the model's tokenizer: its special tokens and its size, and otherwise one token per byte."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocab_size: int, special_tokens: dict[int, str]) -> None:
        plain = (token_id for token_id in range(vocab_size) if token_id not in special_tokens)
        self.tokens = [b""] * vocab_size
        self.special_token_ids = list(special_tokens)
        self.eos_token_id = self.special_token_ids[0]
        for token_id, name in special_tokens.items():
            self.tokens[token_id] = name.encode()
        for byte, token_id in zip(range(256), plain, strict=False):
            self.tokens[token_id] = bytes([byte])

    def __call__(self, text: str) -> list[int]:
        """Never needed: nothing is forced."""
        return []


def try_grammar(llguidance: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Compile the grammar and use it once."""
    special_tokens = {int(token_id): name for token_id, name in request["special_tokens"].items()}
    tokens: Any = TrialTokens(request["vocab_size"], special_tokens)  # not a TokenizerWrapper, but all that is asked of one
    tokenizer = llguidance.LLTokenizer(tokens)
    limits = llguidance.LLParserLimits(**request["limits"])
    matcher = llguidance.LLMatcher(tokenizer, request["grammar"], log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.deep_copy().compute_bitmask()
        matcher.compute_bitmask()
    return {"error": matcher.get_error() or None, "warnings": matcher.get_grammar_warnings()}


def main() -> None:
    """Read a request, answer it."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    llguidance = importlib.import_module("llguidance")  # found by the path of the request, and before there are limits
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_seconds"], request["cpu_seconds"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"], request["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(request["stack_bytes"])
    thread = threading.Thread(target=lambda: print(json.dumps(try_grammar(llguidance, request)), flush=True))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
