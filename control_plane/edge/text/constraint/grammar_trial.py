"""Tries grammars in processes of their own, once each: an untried one could end or block ours."""

import hashlib
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from control_plane.edge.text.constraint.grammar import GrammarRefused, reason_of
from control_plane.edge.text.constraint.limits import PARSER_LIMITS, TRIAL_CPU_SECONDS, TRIAL_MEMORY_BYTES, TRIAL_STACK_BYTES

_SCRIPT = Path(__file__).with_name("trial_process.py")
_MAX_VERDICTS = 1024
_WALL_SECONDS = 60.0


class TrialFailed(Exception):
    """The machine has no room for a trial now, which says nothing about the grammar."""


class GrammarTrial:
    """Says whether a grammar may be compiled, and remembers it. Its methods may be called on any thread, and block."""

    def __init__(self, vocab_size: int, special_tokens: Mapping[int, str]) -> None:
        self._vocab_size = vocab_size
        self._special_tokens = dict(special_tokens)
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # why a grammar is refused, by its digest; last used last
        self._lock = threading.Lock()

    def check(self, grammar: str) -> None:
        """Raises GrammarRefused when the grammar is wrong, ignores a part of what is asked for, or costs too much; and TrialFailed."""
        digest = hashlib.sha256(grammar.encode()).digest()
        verdict = self._known(digest)
        if verdict is None:
            verdict = self._try(grammar)
            with self._lock:
                self._verdicts[digest] = verdict
                if len(self._verdicts) > _MAX_VERDICTS:
                    self._verdicts.popitem(last=False)
        if verdict:
            raise GrammarRefused(verdict)

    def _known(self, digest: bytes) -> str | None:
        with self._lock:
            if digest in self._verdicts:
                self._verdicts.move_to_end(digest)
            return self._verdicts.get(digest)

    def _try(self, grammar: str) -> str:
        request = {
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
        if done.returncode != 0 or not done.stdout:
            return "too complex: compiling it takes too much time, memory or stack"
        answer = json.loads(done.stdout)
        if answer["error"]:
            return reason_of(answer["error"])
        return f"not supported: {reason_of('; '.join(answer['warnings']))}" if answer["warnings"] else ""
