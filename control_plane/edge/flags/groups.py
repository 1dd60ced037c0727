"""Groups of flags that the programs of a control plane share, and what they say. Nothing here imports gRPC."""

import argparse
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.edge.access.options import link_tls
from control_plane.edge.config import FrontEndPort, LeaseOptions, LoggedRequests, ServedAddress, StreamOptions
from control_plane.engine.options import EngineOptions
from pypto_serving.process import argument_types as types
from pypto_serving.process.address import is_loopback
from pypto_serving.process.options import require_flags

_Flags = argparse._ActionsContainer

_SCHEDULER = SchedulerOptions()
_ENGINE = EngineOptions()
_STREAMS = StreamOptions()
_LEASE_SECONDS = 5.0
_FRONT_END_PORT = 50053
_MAX_FRONT_ENDS = 64
_COUNT: dict[str, Any] = {"type": types.positive, "metavar": "N"}

#: Kinds of the sampling parameters for which an operator may set a default: numbers that are not of one request alone.
_SAMPLING_KINDS: dict[str, Any] = {
    field.name: field.type for field in fields(SamplingParams) if field.type in (float, int) and field.name not in ("seed", "top_logprobs")
}


def add_model_directory(flags: _Flags) -> None:
    """The model and its name: what a scheduler needs to know of it."""
    flags.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face directory of the model")
    flags.add_argument("--served-model-name", metavar="NAME", help="how requests call the model; default: name of the directory or link")


def add_model_options(flags: _Flags) -> None:
    """The model as clients see it."""
    add_model_directory(flags)
    flags.add_argument("--chat-template", type=Path, metavar="FILE", help="Jinja template in place of the model's own")
    for name, kind in _SAMPLING_KINDS.items():
        explanation = f"{name} of requests that do not say; default: the model's generation config"
        flags.add_argument(f"--default-{name.replace('_', '-')}", type=kind, metavar="X", help=explanation)


def default_sampling(values: argparse.Namespace) -> dict[str, float]:
    """What an operator sets of it, by field name."""
    given = {name: getattr(values, f"default_{name}") for name in _SAMPLING_KINDS}
    return {name: value for name, value in given.items() if value is not None}


def add_host(flags: _Flags) -> None:
    """--host, the default of other addresses too."""
    flags.add_argument("--host", default="127.0.0.1", help="address to listen on")


def add_client_addresses(flags: _Flags) -> None:
    """Ports for clients and operators."""
    flags.add_argument("--port", type=types.port, default=50051, help="port for clients; 0: any free port")
    flags.add_argument(
        "--admin-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of the admin service; others than this machine's own need a key and TLS",
    )
    flags.add_argument("--admin-port", type=types.port, metavar="PORT", help="port of the admin service; default: off")


def admin_address(parser: argparse.ArgumentParser, values: argparse.Namespace) -> ServedAddress | None:
    """Exits with code 2 where the admin service would be less protected than the clients' port, or open to other machines."""
    require_flags(parser, values, "--admin-key-file", "--admin-port")
    if values.admin_port is not None and values.api_keys_file is not None and values.admin_key_file is None:
        parser.error("--admin-port beside --api-keys-file needs --admin-key-file")
    if not is_loopback(values.admin_host) and not (values.admin_key_file and values.tls_cert):
        parser.error(f"--admin-host {values.admin_host} needs --admin-key-file and --tls-cert: other machines reach it")
    return ServedAddress(values.admin_host, values.admin_port) if values.admin_port is not None else None


def add_metrics_address(flags: _Flags, port: int | None) -> None:
    """`port` is the default; None: off."""
    without = "; default: off, and the scheduler shows what this process counts" if port is None else ""
    flags.add_argument("--metrics-host", metavar="HOST", help="address of /metrics, which asks for no key; default: --host")
    flags.add_argument("--metrics-port", type=types.port, default=port, metavar="PORT", help=f"port of /metrics; 0: any free port{without}")


def add_vllm_metrics(flags: _Flags) -> None:
    """--vllm-metrics, of processes that have an engine."""
    flags.add_argument(
        "--vllm-metrics", action="store_true", help="show what vLLM counts too under its names, for boards, autoscalers and gateways"
    )


def metrics_address(values: argparse.Namespace) -> ServedAddress:
    """What they say, with a port."""
    return ServedAddress(values.metrics_host or values.host, values.metrics_port)


def add_processes(flags: _Flags) -> None:
    """How many processes there are; the hidden flags say which one of them this is."""
    flags.add_argument(
        "--frontends",
        type=types.between(0, _MAX_FRONT_ENDS),
        default=_default_front_ends(),
        metavar="N",
        help="processes that serve clients, on one port, beside one that schedules; 0: one process for everything",
    )
    flags.add_argument("--part", help=argparse.SUPPRESS)
    flags.add_argument("--socket", type=Path, help=argparse.SUPPRESS)


def _default_front_ends() -> int:
    """On a small machine the link between processes costs more than it brings."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if num_cores < 4 else min(4, num_cores // 2)


def add_worker_addresses(flags: _Flags) -> None:
    """Where workers are."""
    flags.add_argument("--announce-port", type=types.port, default=50052, metavar="PORT", help="port for workers that announce themselves")
    flags.add_argument(
        "--worker", type=types.address, action="append", default=[], metavar="HOST:PORT", help="worker to dial; can be repeated"
    )
    flags.add_argument("--takeover", action="store_true", help="take workers over although another control plane's lease still runs")


def add_scheduler_addresses(flags: _Flags) -> None:
    """Where schedulers are."""
    flags.add_argument(
        "--scheduler",
        type=types.address_or_socket,
        action="append",
        required=True,
        metavar="ADDRESS",
        help="scheduler to dial, HOST:PORT or unix:/PATH; repeat it for schedulers that stand by: they are tried in turn",
    )


def add_front_end_port(flags: _Flags) -> None:
    """Where a scheduler listens for front ends."""
    flags.add_argument("--frontend-host", metavar="HOST", help="address to listen on for front ends; default: --host")
    explanation = f"port for front ends; 0: any free port (default: {_FRONT_END_PORT})"
    flags.add_argument("--frontend-port", type=types.port, metavar="PORT", help=explanation)
    flags.add_argument(
        "--frontend-socket",
        type=Path,
        metavar="PATH",
        help="listen for front ends on this socket in the file system instead; whoever may open it is taken for one",
    )


def front_end_port(parser: argparse.ArgumentParser, values: argparse.Namespace) -> FrontEndPort:
    """Exits with code 2 for flags that a socket has no use for."""
    tls = link_tls(parser, values)
    if values.frontend_socket is not None and (values.frontend_host or values.frontend_port is not None or tls):
        parser.error("--frontend-socket stands in place of --frontend-host and --frontend-port, and without --link-tls-ca")
    port = _FRONT_END_PORT if values.frontend_port is None else values.frontend_port
    return FrontEndPort(values.frontend_socket, ServedAddress(values.frontend_host or values.host, port), tls)


def add_lease_options(flags: _Flags) -> None:
    """What decides which one of several schedulers serves."""
    flags.add_argument(
        "--lease-file",
        type=Path,
        metavar="PATH",
        help="serve while this scheduler holds the lease in this file, and stand by otherwise; for schedulers that share a file system",
    )
    flags.add_argument(
        "--lease-kubernetes",
        type=_namespaced_name,
        metavar="NAMESPACE/NAME",
        help="the same with a Lease of coordination.k8s.io, by the service account of the pod",
    )
    explanation = f"how long the lease counts after a renewal, of which there are three in this time (default: {_LEASE_SECONDS})"
    flags.add_argument("--lease-seconds", type=types.seconds_from(1.0), metavar="S", help=explanation)


def lease_options(parser: argparse.ArgumentParser, values: argparse.Namespace) -> LeaseOptions | None:
    """None: no lease is needed. Exits with code 2 for flags that do not go together."""
    if values.lease_file is not None and values.lease_kubernetes is not None:
        parser.error("--lease-file and --lease-kubernetes: a scheduler serves by one lease, give one of them")
    if values.lease_file is None and values.lease_kubernetes is None:
        if values.lease_seconds is not None:
            parser.error("--lease-seconds needs --lease-file or --lease-kubernetes")
        return None
    return LeaseOptions(values.lease_file, values.lease_kubernetes, values.lease_seconds or _LEASE_SECONDS)


def _namespaced_name(text: str) -> tuple[str, str]:
    namespace, separator, name = text.partition("/")
    if not (namespace and name and separator) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text} is not NAMESPACE/NAME")
    return namespace, name


def add_stream_timeouts(flags: _Flags) -> None:
    """How long clients are waited for, and wait."""
    flags.add_argument(
        "--drain-seconds", type=types.seconds, default=30.0, metavar="S", help="how long running requests may go on after SIGTERM"
    )
    flags.add_argument(
        "--slow-reader-seconds",
        type=types.positive_seconds,
        default=_STREAMS.slow_reader_seconds,
        metavar="S",
        help="how long a client may read nothing of its stream before its request ends with RESOURCE_EXHAUSTED",
    )
    flags.add_argument(
        "--max-delta-delay-ms",
        type=types.number_between(0, 1000),
        default=_STREAMS.max_delta_delay_seconds * 1000,
        metavar="MS",
        help="how long tokens of a stream are gathered for one message at most, while there is too much to do; 0: never",
    )


def stream_options(values: argparse.Namespace) -> StreamOptions:
    """What bounds streams."""
    return StreamOptions(slow_reader_seconds=values.slow_reader_seconds, max_delta_delay_seconds=values.max_delta_delay_ms / 1000)


def add_scheduler_timeout(flags: _Flags, condition: str = "") -> None:
    """How long a scheduler is waited for; `condition` says when that is of no concern."""
    flags.add_argument(
        "--scheduler-grace-seconds",
        type=types.seconds,
        default=30.0,
        metavar="S",
        help=f"how long requests wait for a scheduler before they end with UNAVAILABLE{condition}",
    )


def add_request_log(flags: _Flags) -> None:
    """Which requests are logged."""
    flags.add_argument(
        "--request-log",
        choices=[which.value for which in LoggedRequests],
        default=LoggedRequests.ALL.value,
        help="requests that get a line, at level info, when they end: who asked, tokens, times, how it ended; never text",
    )


def add_worker_grace(flags: _Flags) -> None:
    """How long a worker is waited for."""
    flags.add_argument(
        "--worker-grace-seconds",
        type=types.seconds,
        default=_SCHEDULER.grace_seconds,
        metavar="S",
        help="how long a request waits for a worker before it ends with UNAVAILABLE",
    )


def add_worker_timeouts(flags: _Flags) -> None:
    """How long workers are waited for."""
    add_worker_grace(flags)
    flags.add_argument(
        "--hang-seconds",
        type=types.positive_seconds,
        default=3.0,
        metavar="S",
        help="least time without progress after which a worker with work counts as hung; ten times its slowest layer if that is longer",
    )


def add_queue_options(flags: _Flags) -> None:
    """What may wait."""
    flags.add_argument("--max-queued-requests", **_COUNT, default=_ENGINE.max_queued_requests, help="most requests that wait")
    flags.add_argument("--max-queued-tokens", **_COUNT, default=_ENGINE.max_queued_tokens, help="most prompt tokens that wait")


def engine_options(values: argparse.Namespace) -> EngineOptions:
    """What bounds the queue."""
    return EngineOptions(max_queued_requests=values.max_queued_requests, max_queued_tokens=values.max_queued_tokens)


def add_scheduling_options(flags: _Flags) -> None:
    """What runs together."""
    flags.add_argument("--max-num-seqs", **_COUNT, default=_SCHEDULER.max_sequences, help="most sequences that run on one worker")
    flags.add_argument("--max-step-tokens", **_COUNT, default=_SCHEDULER.max_step_tokens, help="most tokens of one step")
    flags.add_argument("--max-model-len", **_COUNT, help="most tokens of a request; default: what the model and the KV memory allow")
    flags.add_argument("--steps-in-flight", **_COUNT, default=_SCHEDULER.max_steps_in_flight, help="steps sent and not yet answered")
    flags.add_argument("--prefix-cache", action=argparse.BooleanOptionalAction, default=True, help="reuse the KV of equal prefixes")
    flags.add_argument(
        "--priority-mode",
        choices=("aged", "strict"),
        default="aged",
        help=f"what priorities are worth: one level {_SCHEDULER.ageing_seconds:g} seconds of waiting, or a lower number always first",
    )
    flags.add_argument(
        "--on-numerics-change",
        choices=("wait", "continue"),
        default="wait",
        help="what a started request does when no worker computes the same bits any more: wait for one, or go on with other bits",
    )


def scheduler_options(values: argparse.Namespace) -> SchedulerOptions:
    """What they say, beside the time that a worker is waited for."""
    return SchedulerOptions(
        max_sequences=values.max_num_seqs,
        max_step_tokens=values.max_step_tokens,
        max_steps_in_flight=values.steps_in_flight,
        max_model_len=values.max_model_len,
        prefix_caching=values.prefix_cache,
        ageing_seconds=math.inf if values.priority_mode == "strict" else _SCHEDULER.ageing_seconds,
        grace_seconds=values.worker_grace_seconds,
        continue_on_numerics_change=values.on_numerics_change == "continue",
    )
