"""Constraints of a scheduler process, which serves before it knows the model's tokens."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from control_plane.core.constraint import Constraint

if TYPE_CHECKING:
    from control_plane.edge.text.constraint.compiler import ConstraintCompiler

_log = logging.getLogger(__name__)


class LateCompiler:
    """Reads the tokenizer on a thread: ahead, where nobody streams yet, or else when the first constraint needs it.

    The library keeps the interpreter's lock for a second or more with a large vocabulary: a scheduler that comes back for running streams
    would keep them waiting for what most requests have no use for.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._compiler: ConstraintCompiler | None = None

    def prepare(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._prepare, name="tokenizer", daemon=True).start()

    def begin(self, grammar: str, count: int) -> Sequence[Constraint]:
        """Constraints for `count` sequences; waits until the tokens are known."""
        return self._ready().begin(grammar, count)

    def _prepare(self) -> None:
        try:
            self._ready().prepare()
        except Exception:  # constraints will say so; whoever serves clients of the same model does too
            _log.exception("the tokenizer cannot be read: constraints will fail")

    def _ready(self) -> "ConstraintCompiler":
        # Tokenizers, templates and grammars take a while to import.
        from control_plane.edge.model_directory import read_model
        from control_plane.edge.text.constraint.compiler import ConstraintCompiler

        with self._lock:
            if self._compiler is None:
                model = read_model(self._directory, None, {}, None)
                self._compiler = ConstraintCompiler(model.tokenizer, model.vocab_size, model.end_token_ids)
            return self._compiler
