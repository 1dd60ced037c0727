"""Configuration of the processes of a control plane, passed down as values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from control_plane.core.options import SchedulerOptions
from control_plane.edge.access.options import AccessOptions, PeerTls
from control_plane.engine.options import EngineOptions
from pypto_serving.process.address import is_loopback, split_address


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Bounds between the engine and clients. More holds a request; half of it lets it go on."""

    max_unwritten_tokens: int = 4096  # of one stream
    max_unwritten_bytes: int = 1 << 20  # of one stream, in memory
    max_unwritten_total_bytes: int = 256 << 20  # of all; from half of it on streams are held earlier
    slow_reader_seconds: float = 60.0  # a client that takes nothing for so long loses its request
    max_delta_delay_seconds: float = 0.05  # for which output is gathered at most, while there is too much to do


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What is read of a model directory, and what goes before it."""

    directory: Path
    served_name: str | None
    chat_template: Path | None
    default_sampling: Mapping[str, float]  # by field name; only those that were given


@dataclass(frozen=True, slots=True)
class ServedAddress:
    """Where something is served. Port 0: any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Arguments of `logs.configure`."""

    form: str
    level: str


class LoggedRequests(enum.Enum):
    """Which requests get a line in the log when they end; the values are those of the flag."""

    ALL = "all"
    FAILED = "failed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SchedulerLink:
    """How a front end reaches a scheduler that is another process."""

    addresses: tuple[str, ...]  # host:port or unix:/path, tried in turn
    grace_seconds: float  # requests fail after so long without a scheduler
    tls: PeerTls | None


@dataclass(frozen=True, slots=True)
class FrontEndConfig:
    """What belongs to clients."""

    model: ModelOptions
    address: ServedAddress
    admin: ServedAddress | None
    metrics: ServedAddress | None
    access: AccessOptions
    drain_seconds: float
    worker_grace_seconds: float
    streams: StreamOptions
    engine: EngineOptions  # its limits, which are looked at before anything is done for a request
    logged_requests: LoggedRequests = LoggedRequests.ALL
    link: SchedulerLink | None = None  # None: in the same process
    name: str = ""  # of several front ends, for operators; empty: after host and port
    shares_port: bool = False  # with others, among which the kernel distributes connections


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The lease that a scheduler must hold to serve: a file, or a Lease of Kubernetes."""

    file: Path | None
    kubernetes: tuple[str, str] | None  # namespace and name
    seconds: float


@dataclass(frozen=True, slots=True)
class FrontEndPort:
    """Where front ends in other processes find a scheduler: a socket in the file system, or else an address."""

    socket: Path | None
    address: ServedAddress
    tls: PeerTls | None


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What belongs to workers."""

    model: Path
    served_name: str | None
    announce: ServedAddress
    metrics: ServedAddress
    vllm_metrics: bool  # vLLM's names beside ours
    workers: tuple[str, ...]
    worker_tls: PeerTls | None
    takeover: bool
    hang_seconds: float
    scheduler: SchedulerOptions
    engine: EngineOptions
    front_ends: FrontEndPort | None = None  # None: the one in the same process
    lease: LeaseOptions | None = None
    otlp_endpoint: str | None = None  # of a collector for spans of requests


class Part(enum.Enum):
    """What a process of a control plane of several processes is."""

    SCHEDULER = "scheduler"
    FRONT_END = "frontend"


@dataclass(frozen=True, slots=True)
class Config:
    """What the flags of `python -m control_plane` say; see their help."""

    front_end: FrontEndConfig
    scheduler: SchedulerConfig
    log: LogOptions
    num_front_ends: int  # 0: one process for everything
    part: Part | None = None  # None: the whole, or the supervisor of its parts
    meets_at: Path | None = None  # the socket between its parts

    @property
    def part_name(self) -> str:
        """What the log calls this part."""
        return f"frontend-{self.front_end.name}" if self.part is Part.FRONT_END else "scheduler"


def front_end_exposures(config: FrontEndConfig) -> list[str]:
    """One sentence for each thing that strangers may do or read at a front end; none for one that only its own machine reaches."""
    access, found = config.access, []
    if not is_loopback(config.address.host):
        clients_need_certificates = access.tls is not None and access.tls.ca is not None
        if access.api_keys_file is None and not clients_need_certificates:
            found.append(f"everybody who reaches {config.address.host} may use this server: give it --api-keys-file or --tls-client-ca")
        elif access.tls is None:
            found.append("keys and prompts travel in plain text: give --tls-cert and --tls-key")
    link = config.link
    if link and link.tls is None and any(_is_remote(address) for address in link.addresses):
        found.append("prompts and output travel to the scheduler in plain text: give --link-tls-ca, --link-tls-cert and --link-tls-key")
    return found


def scheduler_exposures(config: SchedulerConfig) -> list[str]:
    """The same of a scheduler."""
    found, announce, front_ends = [], config.announce, config.front_ends
    if not is_loopback(announce.host) and (config.worker_tls is None or config.worker_tls.files.cert is None):
        found.append(f"everybody who reaches {announce.host} may announce a worker: give --worker-tls-ca and --worker-tls-cert")
    if front_ends and front_ends.socket is None and front_ends.tls is None and not is_loopback(front_ends.address.host):
        flags = "--link-tls-ca, --link-tls-cert and --link-tls-key"
        found.append(f"everybody who reaches {front_ends.address.host} may be a front end, and read and end all requests: give {flags}")
    return found


def _is_remote(address: str) -> bool:
    return not address.startswith("unix:") and not is_loopback(split_address(address)[0])
