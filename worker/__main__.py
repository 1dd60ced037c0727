"""Start of a worker process: python -m worker --model DIR."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pypto_serving.process.interrupts import set_server_signals

if TYPE_CHECKING:
    from worker.config import WorkerConfig

_STOP_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker and return the exit code: 0 after a signal, 2 for a wrong configuration or model, 1 for anything else."""
    set_server_signals()
    from pypto_serving.process import descriptors, logs

    logs.open_standard_streams()
    descriptors.raise_limit()
    # gRPC would write a line of its own, between ours, for every stranger that fails at a TLS handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from pypto_serving.process.start_up import StartUpError
    from worker.config import read_config

    try:
        config = read_config(sys.argv[1:] if arguments is None else arguments)
        logs.configure(config.log_format, config.log_level)
        return _run(config)
    except StartUpError as error:
        print(f"worker: {error}", file=sys.stderr)
        return error.exit_code


def _run(config: "WorkerConfig") -> int:
    from pypto_serving.process.listening import check_port
    from pypto_serving.process.start_up import StartUpError, needs_extra
    from worker.host import keep_freed_memory

    check_port(config.host, config.port)
    check_port(config.metrics_host, config.metrics_port)
    _bound_spinning()
    keep_freed_memory()
    # torch would load torch-npu by itself, and fail without saying why: worker.device does both.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    # torch is behind this import, and those of _serve, and takes seconds.
    with needs_extra("worker"):
        from kernels.cpu.extension import SettingRefused

    try:
        return _serve(config)
    except SettingRefused as error:
        raise StartUpError(str(error)) from None


def _serve(config: "WorkerConfig") -> int:
    import asyncio
    import logging

    from worker.progress import ProgressCounter
    from worker.service.device_thread import DeviceThread
    from worker.service.server import run_worker

    progress = ProgressCounter()
    device = DeviceThread(progress)
    exit_code = 1
    try:
        exit_code = asyncio.run(run_worker(config, device, progress))
    finally:
        set_server_signals()
        stopped = device.stop(_STOP_SECONDS)
    if not stopped:
        # The device thread is in the middle of something long: the interpreter must not be torn down under it.
        logging.shutdown()
        os._exit(exit_code)
    return exit_code


def _bound_spinning() -> None:
    """Let OpenMP's threads sleep soon when they wait for each other; it reads this when torch is imported.

    A decode step has some 200 parallel regions. Where others use the cores, each ends with a wait for a thread that is not running, and
    spinning keeps it from running: measured on 2 busy cores, 478 ms a step instead of 36. On quiet machines a little spinning pays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


if __name__ == "__main__":
    sys.exit(main())
