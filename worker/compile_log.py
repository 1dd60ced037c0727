"""Tells which kernels are being compiled, so that a start of minutes does not look like one that hangs."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from kernels.ops import NAMESPACE

_log = logging.getLogger(__name__)

_LAUNCH_SECONDS = 0.2  # no launch takes so long, and hardly a compilation less


class _CompileLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that is called, and how long the call takes on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        begin = time.monotonic()
        result = func(*args, **(kwargs or {}))
        seconds = time.monotonic() - begin
        if seconds >= _LAUNCH_SECONDS and func.namespace == NAMESPACE:
            _log.info("compiled", extra={"kernel": func.name().partition("::")[2], "seconds": round(seconds, 1)})
        return result


@contextmanager
def compile_log() -> Iterator[None]:
    """Within it, one line for each call of an operator that compiled a kernel."""
    with _CompileLog():  # type: ignore[no-untyped-call]
        yield
