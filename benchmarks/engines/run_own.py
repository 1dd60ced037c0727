"""Our scheduler, engine and executor in one process: PYTHON benchmarks/engines/run_own.py MODEL [flags of the worker]"""

import sys
from pathlib import Path

from answering import answer

from benchmarks.one_process import OneProcess

with OneProcess(Path(sys.argv[1]), sys.argv[2:]) as _engine:
    answer(_engine.generate, _engine.vocab_size)
