"""A lease in memory, whose writers may be held up between looking at it and writing it."""

from collections.abc import Callable

from control_plane.edge.lease.keeper import LeaseRecord, LeaseUnreachable


class MemoryLease:
    """What several stores share."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.num_writes = 0


class MemoryLeaseStore:
    """One contender's way to it."""

    def __init__(self, lease: MemoryLease) -> None:
        self.lease = lease
        self.is_reachable = True
        self.loses_answers = False  # writes succeed, and nobody hears of it
        self.meanwhile: Callable[[], None] = lambda: None  # happens between reading and writing

    def read(self) -> LeaseRecord | None:
        self._require()
        return self.lease.record

    def write(self, holder: str, seconds: float, seen: LeaseRecord | None) -> LeaseRecord | None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self._require()
        if self.lease.record != seen:
            return None
        self.lease.num_writes += 1
        self.lease.record = LeaseRecord(holder, seconds, str(self.lease.num_writes))
        if self.loses_answers:
            raise LeaseUnreachable("timeout")
        return self.lease.record

    def _require(self) -> None:
        if not self.is_reachable:
            raise LeaseUnreachable("no way there")
