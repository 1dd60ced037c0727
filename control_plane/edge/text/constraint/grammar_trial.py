"""Tries grammars in processes of their own, once each: an untried one could end or block ours."""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control_plane.edge.text.constraint.grammar import GrammarRefused, reason_of

#: Keywords of llguidance.LLParserLimits. All of them count work, none of them time, so that a mask depends on nothing but tokens.
#: An object may have some 120 optional properties with these. A mask usually takes 0.1 ms, and takes 20 ms with the worst grammars that we
#: have found: ambiguous ones, which take ever more from token to token. Rows of 1,000 and steps of 20,000 items allowed 100 ms and more.
PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 500,
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 2_000,
    "max_lexer_states": 20_000,  # one to two kilobytes each
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}

#: Of the process that compiles a grammar for the first time. The stack is smaller than those of our own threads.
TRIAL_CPU_SECONDS = 2
TRIAL_MEMORY_BYTES = 768 << 20
TRIAL_STACK_BYTES = 4 << 20


_SCRIPT = Path(__file__).with_name("trial_process.py")
_MAX_VERDICTS = 1024
_WALL_SECONDS = 60.0
_MAX_WORDS = 2000

#: How a process ends at the limit of its time, and of its stack. SIGKILL comes from the kernel where the machine has no memory.
_LIMIT_SIGNALS = (signal.SIGXCPU, signal.SIGSEGV, signal.SIGBUS)
#: What the library and Python say at the limits of memory and stack.
_AT_A_LIMIT = (b"memory allocation of ", b"MemoryError", b"overflowed its stack")


class TrialFailed(Exception):
    """The machine has no room for a trial now, which says nothing about the grammar."""


class TrialBroken(Exception):
    """A trial ended in an unknown way, with the words of the message: a defect of ours, which says nothing about the grammar either."""


class GrammarTrial:
    """Says whether a grammar may be compiled, and remembers it. Its methods may be called on any thread, and block."""

    def __init__(self, vocab_size: int, special_tokens: Mapping[int, str]) -> None:
        self._vocab_size = vocab_size
        self._special_tokens = dict(special_tokens)
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # why a grammar is refused, by its digest; last used last
        self._lock = threading.Lock()

    def check(self, grammar: str) -> None:
        """Raises GrammarRefused when the grammar is wrong, ignores a part of what is asked for, or costs too much.

        Raises TrialFailed and TrialBroken, too: those are not remembered.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        with self._lock:
            verdict = self._verdicts.get(digest)
            if verdict is not None:
                self._verdicts.move_to_end(digest)
        if verdict is None:
            verdict = self._try(grammar)
            with self._lock:
                self._verdicts[digest] = verdict
                if len(self._verdicts) > _MAX_VERDICTS:
                    self._verdicts.popitem(last=False)
        if verdict:
            raise GrammarRefused(verdict)

    def _try(self, grammar: str) -> str:
        request = {
            "path": sys.path,
            "grammar": grammar,
            "limits": PARSER_LIMITS,
            "vocab_size": self._vocab_size,
            "special_tokens": self._special_tokens,
            "cpu_seconds": TRIAL_CPU_SECONDS,
            "memory_bytes": TRIAL_MEMORY_BYTES,
            "stack_bytes": TRIAL_STACK_BYTES,
        }
        command = [sys.executable, "-I", str(_SCRIPT)]
        try:
            done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, timeout=_WALL_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:  # its CPU time would have run out long before
            raise TrialFailed(f"no process for it: {type(error).__name__}") from error
        if -done.returncode in _LIMIT_SIGNALS or any(words in done.stderr for words in _AT_A_LIMIT):
            return "too complex: compiling it takes too much time, memory or stack"
        if done.returncode == -signal.SIGKILL:
            raise TrialFailed("its process was killed")
        if done.returncode != 0 or not done.stdout:
            words = done.stderr.decode(errors="replace").strip()[-_MAX_WORDS:]
            raise TrialBroken(f"the process that tries a grammar ended with exit code {done.returncode}: {words}")
        answer = json.loads(done.stdout)
        if answer["error"]:
            return reason_of(answer["error"])
        return f"not supported: {reason_of('; '.join(answer['warnings']))}" if answer["warnings"] else ""
