"""Configuration of a control plane, read once and passed down as values."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.edge.access.options import AccessOptions, access_options, add_access_options
from control_plane.engine.options import EngineOptions
from pypto_serving.process import argument_types as types
from pypto_serving.process.address import is_loopback
from pypto_serving.process.options import add_log_options, argument_parser, require_flags
from pypto_serving.process.version import program_name

_SCHEDULER = SchedulerOptions()
_ENGINE = EngineOptions()

#: Kinds of the sampling parameters for which an operator may set a default: numbers that are not of one request alone.
_SAMPLING_KINDS: dict[str, Any] = {
    field.name: field.type for field in fields(SamplingParams) if field.type in (float, int) and field.name not in ("seed", "top_logprobs")
}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Bounds between the engine and clients. More holds a request; half of it lets it go on."""

    max_unwritten_tokens: int = 4096  # of one stream
    max_unwritten_bytes: int = 1 << 20  # of one stream, in memory
    max_unwritten_total_bytes: int = 256 << 20  # of all; from half of it on streams are held earlier
    slow_reader_seconds: float = 60.0  # a client that takes nothing for so long loses its request


_STREAMS = StreamOptions()


@dataclass(frozen=True, slots=True)
class Config:
    """What the flags of `python -m control_plane` say; see their help."""

    model: Path
    served_model_name: str | None
    chat_template: Path | None
    default_sampling: Mapping[str, float]  # by field name; only those that were given
    host: str
    port: int
    metrics_host: str
    metrics_port: int
    announce_port: int
    admin_host: str
    admin_port: int | None
    access: AccessOptions
    workers: tuple[str, ...]
    takeover: bool
    hang_seconds: float
    drain_seconds: float
    streams: StreamOptions
    scheduler: SchedulerOptions
    engine: EngineOptions
    log_format: str
    log_level: str


def read_config(arguments: Sequence[str]) -> Config:
    """Read flags, environment and file; exits for wrong flags and --help."""
    description = "The control plane of PyPTO Serving: serves clients and steers workers."
    parser = argument_parser(program_name("control_plane"), description, "control")
    parser.usage = f"{parser.prog} --model DIR --worker HOST:PORT [options]"
    _add_model_options(parser.add_argument_group("model"))
    _add_network_options(parser.add_argument_group("network"))
    add_access_options(parser.add_argument_group("access"))
    _add_timeout_options(parser.add_argument_group("timeouts"))
    _add_scheduling_options(parser.add_argument_group("scheduling"))
    add_log_options(parser.add_argument_group("log"))
    values = parser.parse_args(arguments)
    _check_admin(parser, values)
    return _config(values, access_options(parser, values))


def _add_model_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face directory of the model")
    parser.add_argument("--served-model-name", metavar="NAME", help="how requests call the model; default: name of the directory or link")
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="Jinja template in place of the model's own")
    for name, kind in _SAMPLING_KINDS.items():
        explanation = f"{name} of requests that do not say; default: the model's generation config"
        parser.add_argument(f"--default-{name.replace('_', '-')}", type=kind, metavar="X", help=explanation)


def _add_network_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=types.port, default=50051, help="port for clients; 0: any free port")
    parser.add_argument("--metrics-host", metavar="HOST", help="address of /metrics, which asks for no key; default: --host")
    parser.add_argument("--metrics-port", type=types.port, default=9400, metavar="PORT", help="port of /metrics; 0: any free port")
    parser.add_argument("--announce-port", type=types.port, default=50052, metavar="PORT", help="port for workers that announce themselves")
    parser.add_argument(
        "--admin-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of the admin service; others than this machine's own need a key and TLS",
    )
    parser.add_argument("--admin-port", type=types.port, metavar="PORT", help="port of the admin service; default: off")
    parser.add_argument(
        "--worker", type=types.address, action="append", default=[], metavar="HOST:PORT", help="worker to dial; can be repeated"
    )
    parser.add_argument("--takeover", action="store_true", help="take workers over although another control plane's lease still runs")


def _add_timeout_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--drain-seconds", type=types.seconds, default=30.0, metavar="S", help="how long running requests may go on after SIGTERM"
    )
    parser.add_argument(
        "--slow-reader-seconds",
        type=types.positive_seconds,
        default=_STREAMS.slow_reader_seconds,
        metavar="S",
        help="how long a client may read nothing of its stream before its request ends with RESOURCE_EXHAUSTED",
    )
    parser.add_argument(
        "--worker-grace-seconds",
        type=types.seconds,
        default=_SCHEDULER.grace_seconds,
        metavar="S",
        help="how long a request waits for a worker before it ends with UNAVAILABLE",
    )
    parser.add_argument(
        "--hang-seconds",
        type=types.positive_seconds,
        default=3.0,
        metavar="S",
        help="least time without progress after which a worker with work counts as hung; ten times its slowest layer if that is longer",
    )


def _add_scheduling_options(parser: argparse._ActionsContainer) -> None:
    count: dict[str, Any] = {"type": types.positive, "metavar": "N"}
    parser.add_argument("--max-queued-requests", **count, default=_ENGINE.max_queued_requests, help="most requests that wait")
    parser.add_argument("--max-queued-tokens", **count, default=_ENGINE.max_queued_tokens, help="most prompt tokens that wait")
    parser.add_argument("--max-num-seqs", **count, default=_SCHEDULER.max_sequences, help="most sequences that run on one worker")
    parser.add_argument("--max-step-tokens", **count, default=_SCHEDULER.max_step_tokens, help="most tokens of one step")
    parser.add_argument("--max-model-len", **count, help="most tokens of a request; default: what the model and the KV memory allow")
    parser.add_argument("--steps-in-flight", **count, default=_SCHEDULER.max_steps_in_flight, help="steps sent and not yet answered")
    parser.add_argument("--prefix-cache", action=argparse.BooleanOptionalAction, default=True, help="reuse the KV of equal prefixes")
    parser.add_argument(
        "--on-numerics-change",
        choices=("wait", "continue"),
        default="wait",
        help="what a started request does when no worker computes the same bits any more: wait for one, or go on with other bits",
    )


def _check_admin(parser: argparse.ArgumentParser, values: argparse.Namespace) -> None:
    """End with exit code 2 where the admin service would be less protected than the clients' port, or open to other machines."""
    require_flags(parser, values, "--admin-key-file", "--admin-port")
    if values.admin_port is not None and values.api_keys_file is not None and values.admin_key_file is None:
        parser.error("--admin-port beside --api-keys-file needs --admin-key-file")
    if not is_loopback(values.admin_host) and not (values.admin_key_file and values.tls_cert):
        parser.error(f"--admin-host {values.admin_host} needs --admin-key-file and --tls-cert: other machines reach it")


def _config(values: argparse.Namespace, access: AccessOptions) -> Config:
    given = {name: getattr(values, f"default_{name}") for name in _SAMPLING_KINDS}
    return Config(
        model=values.model,
        served_model_name=values.served_model_name,
        chat_template=values.chat_template,
        default_sampling={name: value for name, value in given.items() if value is not None},
        host=values.host,
        port=values.port,
        metrics_host=values.metrics_host or values.host,
        metrics_port=values.metrics_port,
        announce_port=values.announce_port,
        admin_host=values.admin_host,
        admin_port=values.admin_port,
        access=access,
        workers=tuple(values.worker),
        takeover=values.takeover,
        hang_seconds=values.hang_seconds,
        drain_seconds=values.drain_seconds,
        streams=StreamOptions(slow_reader_seconds=values.slow_reader_seconds),
        scheduler=SchedulerOptions(
            max_sequences=values.max_num_seqs,
            max_step_tokens=values.max_step_tokens,
            max_steps_in_flight=values.steps_in_flight,
            max_model_len=values.max_model_len,
            prefix_caching=values.prefix_cache,
            grace_seconds=values.worker_grace_seconds,
            continue_on_numerics_change=values.on_numerics_change == "continue",
        ),
        engine=EngineOptions(max_queued_requests=values.max_queued_requests, max_queued_tokens=values.max_queued_tokens),
        log_format=values.log_format,
        log_level=values.log_level,
    )


def exposures(config: Config) -> list[str]:
    """One sentence for each thing that strangers may do or read; none for a server that only its own machine reaches."""
    if is_loopback(config.host):
        return []
    access, found = config.access, []
    clients_need_certificates = access.tls is not None and access.tls.ca is not None
    if access.api_keys_file is None and not clients_need_certificates:
        found.append(f"everybody who reaches {config.host} may use this server: give it --api-keys-file or --tls-client-ca")
    elif access.tls is None:
        found.append("keys and prompts travel in plain text: give --tls-cert and --tls-key")
    if access.worker_tls is None or access.worker_tls.cert is None:
        found.append(f"everybody who reaches {config.host} may announce a worker: give --worker-tls-ca and --worker-tls-cert")
    return found
