"""Configuration of a worker, read once and passed down as values. Nothing here imports torch, so that --help is fast."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import configargparse

from pypto_serving.process import argument_types as types
from pypto_serving.process.address import is_ip, is_loopback, join_address
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.options import add_log_options, add_server_tls_options, add_tracing_options, argument_parser, server_tls_files
from pypto_serving.process.start_up import StartUpError
from pypto_serving.process.version import program_name
from pypto_serving.wire.contract import MAX_LANES, MIN_LEASE_SECONDS
from pypto_serving.wire.model_directory import check_directory
from worker.host import num_host_cores
from worker.npu_software import NpuKernels
from worker.step_time import MAX_STEP_MS, StepTable, read_step_table

_WILDCARD_HOSTS = ("0.0.0.0", "::")
_step_time = types.number_between(0, MAX_STEP_MS)
_MAX_THREADS = 1024  # OpenMP crashes where it cannot start as many as it is told to


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What the flags of `python -m worker` say; see their help."""

    model: Path
    device: str
    device_index: int
    step_ms: float
    token_us: float
    step_table: StepTable | None
    kernels: NpuKernels
    dtype: str
    quantize: str | None
    threads: int
    host: str
    port: int
    tls: TlsFiles | None
    metrics_host: str
    metrics_port: int
    eager: bool
    max_lanes: int
    max_step_tokens: int
    max_steps_in_flight: int
    max_model_len: int | None
    num_pages: int | None
    page_tokens: int | None
    lease_seconds: float
    drain_seconds: float
    exit_when_orphaned: bool
    announce: str | None
    advertise: str | None
    otlp_endpoint: str | None
    log_format: str
    log_level: str

    @property
    def is_exposed(self) -> bool:
        """Whether anybody on another machine may take the worker over."""
        return not is_loopback(self.host) and (self.tls is None or self.tls.ca is None)

    def advertised_address(self, port: int) -> str:
        """host:port under which a control plane finds the worker that is bound to `port`."""
        host = self.advertise or self.host
        if is_ip(host):
            return join_address(host, port)
        return host if host.rpartition(":")[2].isdecimal() else f"{host}:{port}"


def worker_parser() -> configargparse.ArgumentParser:
    """The flags of `python -m worker`."""
    parser = argument_parser(program_name("worker"), "A worker of PyPTO Serving: owns one device and executes steps.", "worker")
    parser.usage = f"{parser.prog} --model DIR [options]"
    _add_model_options(parser)
    _add_capacity_options(parser)
    _add_network_options(parser)
    add_tracing_options(parser)
    add_log_options(parser)
    return parser


def read_config(arguments: Sequence[str]) -> WorkerConfig:
    """Read flags, environment and file; raises StartUpError for values that do not fit each other, and exits for wrong flags and --help."""
    parser = worker_parser()
    parsed = parser.parse_args(arguments)
    tls = server_tls_files(parser, parsed)
    values = {name: value for name, value in vars(parsed).items() if name != "config" and not name.startswith("tls_")}
    _check_step_times(parser, parsed)
    values |= {"step_ms": parsed.step_ms or 0.0, "token_us": parsed.token_us or 0.0}
    values["kernels"] = NpuKernels(parsed.kernels)
    values["metrics_host"] = parsed.metrics_host or parsed.host
    config = WorkerConfig(**values, tls=tls)
    try:
        check_directory(config.model)
    except ValueError as error:
        raise StartUpError(f"--model {error}") from None
    if config.announce and not config.advertise and config.host in _WILDCARD_HOSTS:
        raise StartUpError(f"--advertise is needed with --announce: --host {config.host} is no address that a control plane can dial")
    return config


def _check_step_times(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    for flag in ("step_ms", "token_us", "step_table"):
        name = f"--{flag.replace('_', '-')}"
        if getattr(parsed, flag) is not None and parsed.device != "null":
            parser.error(f"{name} needs --device null")
        if getattr(parsed, flag) is not None and parsed.step_table is not None and flag != "step_table":
            parser.error(f"{name} and --step-table, which has all times, exclude each other")


def _step_table(text: str) -> StepTable:
    try:
        return read_step_table(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face directory of the model")
    parser.add_argument(
        "--device",
        choices=("auto", "npu", "cuda", "cpu", "null"),
        default="auto",
        help="auto: the first of npu, cuda and cpu that is there; null: compute nothing and make tokens up, to measure control planes",
    )
    parser.add_argument("--device-index", type=types.count, default=0, metavar="N", help="which device of that kind")
    parser.add_argument("--step-ms", type=_step_time, metavar="MS", help="time of a step, with --device null only; default: 0")
    parser.add_argument(
        "--token-us", type=_step_time, metavar="US", help="more time for every token that runs, with --device null only; default: 0"
    )
    parser.add_argument(
        "--step-table",
        type=_step_table,
        metavar="FILE",
        help="instead: time of a step as CSV of batch_size,tokens,milliseconds, interpolated, with --device null only",
    )
    parser.add_argument(
        "--eager", action="store_true", help="launch every kernel by itself; default: on an accelerator steps that only decode are graphs"
    )
    parser.add_argument(
        "--kernels",
        choices=[kernels.value for kernels in NpuKernels],
        default=NpuKernels.PYPTO.value,
        help="on an NPU: PyPTO's, which are batch-invariant, or those that come with CANN, which are not; see docs/npu.md",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of weights, activations and KV cache")
    parser.add_argument(
        "--quantize",
        choices=("int8", "int4", "int4:32", "int4:128"),
        help="matrices of 8 bits, or of 4 by groups of 32 (int4) or 128 inputs; on a CPU only, see docs/quantization.md",
    )
    parser.add_argument(
        "--threads",
        type=types.between(1, _MAX_THREADS),
        default=min(num_host_cores(), _MAX_THREADS),
        metavar="N",
        help="CPU threads: cores / workers on this machine",
    )


def _add_capacity_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-lanes", type=types.between(1, MAX_LANES), default=256, metavar="N", help="most sequences held at once")
    parser.add_argument("--max-step-tokens", type=types.positive, default=512, metavar="N", help="most tokens in a step")
    parser.add_argument("--max-steps-in-flight", type=types.positive, default=2, metavar="N", help="most steps sent and not yet answered")
    parser.add_argument(
        "--max-model-len", type=types.positive, metavar="N", help="most tokens of a sequence; default: what the model supports"
    )
    parser.add_argument("--num-pages", type=types.positive, metavar="N", help="pages of the KV cache; default: what free memory allows")
    parser.add_argument("--page-tokens", type=types.positive, metavar="N", help="tokens per page; default: 16, on an NPU 128")


def _add_network_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=types.port, metavar="PORT", default=50061, help="gRPC port; 0: any free one")
    add_server_tls_options(parser, "control planes, also the one announced to,")
    parser.add_argument("--metrics-host", metavar="HOST", help="address of /metrics, which asks for no key; default: --host")
    parser.add_argument("--metrics-port", type=types.port, metavar="PORT", default=9401, help="port of /metrics; 0: any free one")
    parser.add_argument(
        "--lease-seconds",
        type=types.seconds_from(MIN_LEASE_SECONDS),
        default=10.0,
        metavar="S",
        help="an owner silent for this long loses the worker",
    )
    parser.add_argument(
        "--drain-seconds", type=types.seconds, default=30.0, metavar="S", help="longest time to finish sequences after SIGTERM"
    )
    parser.add_argument(
        "--exit-when-orphaned", action="store_true", help="end when the owner's lease has run out; default: wait for another owner"
    )
    parser.add_argument("--announce", type=types.address, metavar="HOST:PORT", help="control plane to announce this worker to")
    parser.add_argument("--advertise", metavar="HOST[:PORT]", help="address to announce; default: the one listened on")
