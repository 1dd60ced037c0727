"""What a control plane carries, with null workers in place of accelerators: python -m benchmarks.bench_planes

CPU times are those of processes, from /proc. Client, control plane and workers share this machine. The exit status is 1 when a goal is
missed.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.planes.measures import MEASURES, Scale
from benchmarks.report import Report
from benchmarks.report_options import add_output_options, write_rows
from pypto_serving.process.argument_types import count
from scripts.prepare_demo_model import prepare_demo_model


def main() -> int:
    """Measure and report; returns the exit status."""
    options = _read_options()
    print(", ".join(describe_machine().values()))
    report, scale = Report("planes"), _scale(options)
    for name in options.only:
        for row in MEASURES[name](scale):
            report.add(row)
    write_rows(report, options)
    return 1 if report.num_missed else 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--frontends", type=count, default=1, metavar="N", help="front ends, 0: one process (default: 1)")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="what is measured (default: everything)")
    parser.add_argument("--quick", action="store_true", help="measure a fourth of it")
    add_output_options(parser)
    return parser.parse_args()


def _scale(options: argparse.Namespace) -> Scale:
    model = options.model or prepare_demo_model()
    if options.quick:
        return Scale(model, options.frontends, rounds=1, max_tokens=256, watch_seconds=3.0, num_probes=50, num_calls=500, num_held=1250)
    return Scale(model, options.frontends, rounds=3, max_tokens=1024, watch_seconds=8.0, num_probes=100, num_calls=2000, num_held=5000)


if __name__ == "__main__":
    sys.exit(main())
