"""Command lines of the programs of a control plane: the whole of it, a front end alone, a scheduler alone.

Nothing here imports gRPC, so that --help is fast.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import configargparse

from control_plane.edge.access.options import (
    access_options,
    add_access_options,
    add_link_tls_options,
    add_worker_tls_options,
    link_tls,
    worker_tls,
)
from control_plane.edge.config import (
    Config,
    FrontEndConfig,
    FrontEndPort,
    LoggedRequests,
    LogOptions,
    ModelOptions,
    Part,
    SchedulerConfig,
    SchedulerLink,
    ServedAddress,
)
from control_plane.edge.flags import groups
from pypto_serving.process.options import add_log_options, add_tracing_options, argument_parser, require_flags
from pypto_serving.process.version import program_name


def control_plane_parser() -> configargparse.ArgumentParser:
    """The flags of `python -m control_plane`."""
    description = "The control plane of PyPTO Serving: serves clients and steers workers."
    parser = argument_parser(program_name("control_plane"), description, "control")
    parser.usage = f"{parser.prog} --model DIR --worker HOST:PORT [options]"
    groups.add_model_options(parser.add_argument_group("model"))
    groups.add_processes(parser.add_argument_group("processes"))
    network = parser.add_argument_group("network")
    groups.add_host(network)
    groups.add_client_addresses(network)
    groups.add_metrics_address(network, port=9400)
    groups.add_vllm_metrics(network)
    groups.add_worker_addresses(network)
    access = parser.add_argument_group("access")
    add_access_options(access)
    add_worker_tls_options(access)
    timeouts = parser.add_argument_group("timeouts")
    groups.add_stream_timeouts(timeouts)
    groups.add_scheduler_timeout(timeouts, "; without effect where one process does everything (--frontends 0)")
    groups.add_worker_timeouts(timeouts)
    _add_scheduling_group(parser)
    add_tracing_options(parser.add_argument_group("tracing"))
    log = parser.add_argument_group("log")
    add_log_options(log)
    groups.add_request_log(log)
    return parser


def read_config(arguments: Sequence[str]) -> Config:
    """Read flags, environment and file of `python -m control_plane`; exits for wrong flags and --help."""
    parser = control_plane_parser()
    values = parser.parse_args(arguments)
    log = LogOptions(values.log_format, values.log_level)
    whole = Config(_front_end(parser, values), _scheduler(parser, values), log, values.frontends)
    return whole if values.part is None else _part(parser, whole, values)


def _part(parser: argparse.ArgumentParser, whole: Config, values: argparse.Namespace) -> Config:
    """What a child of the supervisor is told: it is the scheduler, or the front end of a number; they meet at a socket."""
    require_flags(parser, values, "--part", "--socket")
    if values.part not in (Part.SCHEDULER.value, *map(str, range(values.frontends))):
        parser.error(f"--part {values.part}: is neither {Part.SCHEDULER.value} nor a number below --frontends {values.frontends}")
    link = SchedulerLink((f"unix:{values.socket}",), values.scheduler_grace_seconds, None)
    admin = whole.front_end.admin if values.part == "0" else None
    return replace(
        whole,
        front_end=replace(whole.front_end, link=link, admin=admin, metrics=None, shares_port=True, name=values.part),
        scheduler=replace(whole.scheduler, front_ends=FrontEndPort(values.socket, whole.front_end.address, None)),
        part=Part.SCHEDULER if values.part == Part.SCHEDULER.value else Part.FRONT_END,
        meets_at=values.socket,
    )


def front_end_parser() -> configargparse.ArgumentParser:
    """The flags of `python -m control_plane.frontend`."""
    description = "A front end of PyPTO Serving: serves clients, and hands their requests to a scheduler."
    parser = argument_parser(program_name("control_plane.frontend"), description, "frontend")
    parser.usage = f"{parser.prog} --model DIR --scheduler HOST:PORT [options]"
    groups.add_model_options(parser.add_argument_group("model"))
    network = parser.add_argument_group("network")
    groups.add_host(network)
    groups.add_scheduler_addresses(network)
    groups.add_client_addresses(network)
    groups.add_metrics_address(network, port=None)
    access = parser.add_argument_group("access")
    add_access_options(access)
    add_link_tls_options(access, "schedulers")
    access.add_argument("--link-tls-name", metavar="NAME", help="host that schedulers' certificates name; default: the one dialled")
    timeouts = parser.add_argument_group("timeouts")
    groups.add_scheduler_timeout(timeouts)
    groups.add_stream_timeouts(timeouts)
    groups.add_worker_grace(timeouts)
    groups.add_queue_options(parser.add_argument_group("queue: refused early, by what the scheduler last said of it"))
    log = parser.add_argument_group("log")
    add_log_options(log)
    groups.add_request_log(log)
    return parser


def read_front_end_config(arguments: Sequence[str]) -> tuple[FrontEndConfig, LogOptions]:
    """The same as `read_config` for `python -m control_plane.frontend`."""
    parser = front_end_parser()
    values = parser.parse_args(arguments)
    require_flags(parser, values, "--link-tls-name", "--link-tls-ca")
    link = SchedulerLink(tuple(values.scheduler), values.scheduler_grace_seconds, link_tls(parser, values, values.link_tls_name))
    return _front_end(parser, values, link), LogOptions(values.log_format, values.log_level)


def scheduler_parser() -> configargparse.ArgumentParser:
    """The flags of `python -m control_plane.scheduler`."""
    description = "A scheduler of PyPTO Serving: takes requests from front ends, and steers workers."
    parser = argument_parser(program_name("control_plane.scheduler"), description, "scheduler")
    parser.usage = f"{parser.prog} --model DIR --worker HOST:PORT [options]"
    groups.add_model_directory(parser.add_argument_group("model"))
    network = parser.add_argument_group("network")
    groups.add_host(network)
    groups.add_front_end_port(network)
    groups.add_metrics_address(network, port=9400)
    groups.add_vllm_metrics(network)
    groups.add_worker_addresses(network)
    access = parser.add_argument_group("access")
    add_link_tls_options(access, "front ends")
    add_worker_tls_options(access)
    groups.add_lease_options(parser.add_argument_group("lease"))
    groups.add_worker_timeouts(parser.add_argument_group("timeouts"))
    _add_scheduling_group(parser)
    add_tracing_options(parser.add_argument_group("tracing"))
    add_log_options(parser.add_argument_group("log"))
    return parser


def read_scheduler_config(arguments: Sequence[str]) -> tuple[SchedulerConfig, LogOptions]:
    """The same as `read_config` for `python -m control_plane.scheduler`."""
    parser = scheduler_parser()
    values = parser.parse_args(arguments)
    front_ends, lease = groups.front_end_port(parser, values), groups.lease_options(parser, values)
    return replace(_scheduler(parser, values), front_ends=front_ends, lease=lease), LogOptions(values.log_format, values.log_level)


def _add_scheduling_group(parser: configargparse.ArgumentParser) -> None:
    scheduling = parser.add_argument_group("scheduling")
    groups.add_queue_options(scheduling)
    groups.add_scheduling_options(scheduling)


def _front_end(parser: argparse.ArgumentParser, values: argparse.Namespace, link: SchedulerLink | None = None) -> FrontEndConfig:
    return FrontEndConfig(
        model=ModelOptions(values.model, values.served_model_name, values.chat_template, groups.default_sampling(values)),
        address=ServedAddress(values.host, values.port),
        admin=groups.admin_address(parser, values),
        metrics=groups.metrics_address(values) if values.metrics_port is not None else None,
        access=access_options(parser, values),
        drain_seconds=values.drain_seconds,
        worker_grace_seconds=values.worker_grace_seconds,
        streams=groups.stream_options(values),
        engine=groups.engine_options(values),
        logged_requests=LoggedRequests(values.request_log),
        link=link,
    )


def _scheduler(parser: argparse.ArgumentParser, values: argparse.Namespace) -> SchedulerConfig:
    return SchedulerConfig(
        model=values.model,
        served_name=values.served_model_name,
        announce=ServedAddress(values.host, values.announce_port),
        metrics=groups.metrics_address(values),
        vllm_metrics=values.vllm_metrics,
        workers=tuple(values.worker),
        worker_tls=worker_tls(parser, values),
        takeover=values.takeover,
        hang_seconds=values.hang_seconds,
        scheduler=groups.scheduler_options(values),
        engine=groups.engine_options(values),
        otlp_endpoint=values.otlp_endpoint,
    )
