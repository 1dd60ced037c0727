"""Runs a function in a process of its own: after an error inside PyPTO a process cannot launch anything any more."""

import multiprocessing
import os
import resource
import signal
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


def run_isolated(function: str, /, *args: Any, max_cpu_seconds: int = 900, max_seconds: float = 3600) -> Any:
    """Call "package.module:name" in a fresh process with an empty working directory of its own; raises IsolatedFailure.

    The processes are forked from a server that has imported torch and PyPTO once. Tensors go in and come out as copies. A process is ended
    that computes for too long, and after much longer also one that waits, as on a busy machine all do.
    """
    # Read when the server starts, by all of its children; Python 3.11 would not hand our path on to it.
    os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="pypto-") as directory:
        process = context.Process(target=_call, args=(sender, directory, function, args, max_cpu_seconds), daemon=True)
        process.start()
        sender.close()
        try:
            return _answer(receiver, function, max_seconds)
        except EOFError:
            process.join()
            spent = f": more than {max_cpu_seconds} s of CPU time" if process.exitcode == -signal.SIGXCPU else ""
            raise IsolatedFailure(f"{function}: the process died{spent}\n{_read_end(directory)}") from None
        except IsolatedFailure as failure:
            raise IsolatedFailure(f"{failure}\n{_read_end(directory)}") from None
        finally:
            process.kill()
            process.join()


def _answer(receiver: Connection, function: str, max_seconds: float) -> Any:
    if not receiver.poll(max_seconds):
        raise IsolatedFailure(f"{function}: no result after {max_seconds} s")
    result, error = receiver.recv()
    if error:
        raise IsolatedFailure(f"{function}: {error}")
    return result


def _read_end(directory: str) -> str:
    """The end of what the process wrote."""
    return Path(directory, "written").read_text(errors="replace")[-2000:]


def _call(sender: Connection, directory: str, function: str, args: tuple[Any, ...], max_cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (max_cpu_seconds, resource.RLIM_INFINITY))
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
