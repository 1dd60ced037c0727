"""Runs a function in a process of its own: after an error inside PyPTO a process cannot launch anything any more."""

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PRELOADED = ["torch", "pypto", "kernels.testing.interpreter", "kernels.testing.cost_model"]


class IsolatedFailure(AssertionError):
    """The function raised, died or took too long; the message holds its traceback and the end of what it wrote."""


def run_isolated(function: str, /, *args: Any, timeout_seconds: float = 300.0) -> Any:
    """Call "package.module:name" in a fresh process with an empty working directory of its own; raises IsolatedFailure.

    The processes are forked from a server that has imported torch and PyPTO once. Tensors go in and come out as copies.
    """
    # Read when the server starts, by all of its children; Python 3.11 would not hand our path on to it.
    os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="pypto-") as directory:
        process = context.Process(target=_call, args=(sender, directory, function, args), daemon=True)
        process.start()
        sender.close()
        try:
            return _answer(receiver, function, timeout_seconds)
        except IsolatedFailure as failure:
            written = Path(directory, "written").read_text(errors="replace")[-2000:]
            raise IsolatedFailure(f"{failure}\n{written}") from None
        finally:
            process.kill()
            process.join()


def _answer(receiver: Connection, function: str, timeout_seconds: float) -> Any:
    if not receiver.poll(timeout_seconds):
        raise IsolatedFailure(f"{function}: no result within {timeout_seconds:g} s")
    try:
        result, error = receiver.recv()
    except EOFError:
        raise IsolatedFailure(f"{function}: the process died") from None
    if error:
        raise IsolatedFailure(f"{function}: {error}")
    return result


def _call(sender: Connection, directory: str, function: str, args: tuple[Any, ...]) -> None:
    os.chdir(directory)
    written = os.open("written", os.O_CREAT | os.O_WRONLY)
    os.dup2(written, 1)
    os.dup2(written, 2)
    module, _, name = function.partition(":")
    called: Callable[..., Any] = getattr(import_module(module), name)
    try:
        sender.send((called(*args), ""))
    except BaseException:
        sender.send((None, traceback.format_exc()))
