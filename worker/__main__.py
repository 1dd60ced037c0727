"""Start of a worker process: python -m worker --model DIR."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from pypto_serving.process import logs
from pypto_serving.process.start_up import StartUpError
from worker.config import WorkerConfig, read_config

_STOP_SECONDS = 2.0


def main(arguments: Sequence[str]) -> int:
    """Run a worker and return the exit code: 0 after a signal, 2 for a wrong configuration or model, 1 for anything else."""
    try:
        config = read_config(arguments)
        logs.configure(config.log_format, config.log_level)
        return _run(config)
    except StartUpError as error:
        print(f"worker: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before the event loop listens to signals
        return 130


def _run(config: WorkerConfig) -> int:
    # torch is behind these two, and takes seconds to import.
    from worker.service.device_thread import DeviceThread, ProgressCounter
    from worker.service.server import run_worker

    progress = ProgressCounter()
    device = DeviceThread(progress)
    exit_code = 1
    try:
        exit_code = asyncio.run(run_worker(config, device, progress))
    finally:
        stopped = device.stop(_STOP_SECONDS)
    if not stopped:
        # The device thread is in the middle of something long: the interpreter must not be torn down under it.
        logging.shutdown()
        os._exit(exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
