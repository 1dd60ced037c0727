"""Options of the links: how workers are dialled and watched."""

import random
from dataclasses import dataclass, field

from pypto_serving.process.credentials.tls import ReloadedTls


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing pauses between attempts, in seconds."""

    initial_seconds: float
    max_seconds: float

    def pause(self, num_failures: int) -> float:
        """Pause after so many failures in a row, none after none; jitter keeps many links from dialling in step."""
        if num_failures <= 0:
            return 0.0
        seconds = self.initial_seconds * 2.0 ** min(num_failures - 1, 32)
        return min(seconds, self.max_seconds) * random.uniform(0.75, 1.0)


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """Certificates for the links to workers. `name`: the host that theirs must name; None: the one dialled."""

    files: ReloadedTls
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options that all links of a control plane share."""

    control_plane_id: str  # new at every start of the process
    model_fingerprint: str
    model_name: str = ""  # for people
    tls: WorkerTls | None = None  # plain text
    takeover: bool = False  # the first handshake with a worker takes it from another control plane
    redial: Backoff = field(default_factory=lambda: Backoff(0.02, 1.0))
    refused: Backoff = field(default_factory=lambda: Backoff(0.5, 5.0))  # the worker is there and does not want us
    connect_seconds: float = 1.0
    handshake_seconds: float = 5.0
    min_hang_seconds: float = 3.0  # least and
    max_hang_seconds: float = 60.0  # most time without progress that makes a worker with work a hung one
    max_unproven_streams: int = 3  # streams in a row that broke without an answer, until the session is given up
