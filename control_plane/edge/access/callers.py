"""Who calls, and what they may do."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from control_plane.engine.ports import Quota, Tenant

#: Names and values of headers.
Metadata = tuple[tuple[str, str], ...]

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PriorityRange:
    """Priorities that requests may have; lower runs first."""

    low: int
    high: int

    def __contains__(self, priority: int) -> bool:
        return self.low <= priority <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


#: Without --priorities no request goes before those that set no priority.
DEFAULT_PRIORITIES = PriorityRange(0, _MAX_INT32)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever shows one of the keys of one name; where no key is asked for, everybody. Ids and caches of different names are apart."""

    name: str = ""
    priorities: PriorityRange | None = None  # None: those of the server
    quota: Quota = field(default_factory=Quota)
    is_named: bool = True  # by the operator, and not by the digest of its key

    @property
    def tenant(self) -> Tenant | None:
        """Whom its requests are charged to; nobody where no key is asked for."""
        return Tenant(self.name, self.quota, self.is_named) if self.name else None

    def scoped(self, text: str) -> str:
        """A request id or cache salt as the rest of the server knows it."""
        return f"{self.name}/{text}" if self.name else text


#: The caller of the call that the current task serves; set where the key is checked.
CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039  it cannot be changed


def parse_priorities(text: str) -> PriorityRange:
    """Read LOW..HIGH; raises ValueError."""
    low, separator, high = text.partition("..")
    try:
        found = PriorityRange(int(low), int(high))
    except ValueError:
        found = None
    if not separator or found is None or not -_MAX_INT32 - 1 <= found.low <= found.high <= _MAX_INT32:
        raise ValueError(f"{text} is not LOW..HIGH with integers from {-_MAX_INT32 - 1} to {_MAX_INT32}")
    return found
