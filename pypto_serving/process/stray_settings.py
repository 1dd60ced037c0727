"""Settings in the environment and in TOML files that no program would read: a misspelt one is an error, not a default."""

import difflib
import re
from collections.abc import Iterable, Mapping

_PREFIX = "PYPTO_SERVING_"

#: Whose flags stand in the environment under PYPTO_SERVING_<SECTION>_, and in a table of this name in a TOML file.
SECTIONS = ("control", "frontend", "scheduler", "worker", "gateway")

#: What else is read from the environment: by the command line of clients, and for what is built or prepared once.
OTHER_VARIABLES = ("PYPTO_SERVING_ADMIN_TARGET", "PYPTO_SERVING_API_KEY", "PYPTO_SERVING_CACHE", "PYPTO_SERVING_TARGET")

# Kubernetes describes each Service of a namespace so, in every pod that does not set enableServiceLinks to false.
_LINK_NAME = re.compile(r"(_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


def without_service_links(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what Kubernetes says of Services whose names are like ours."""
    return {name: value for name, value in environment.items() if not _is_service_link(name, value)}


def stray_variable(environment: Iterable[str], section: str, known: Iterable[str]) -> str:
    """What is wrong with the first variable that has our prefix and that nobody reads; empty without one.

    `known` are those of `section`, which is empty for the command line of clients: it has none. The flags of other sections belong to
    other programs, which know them.
    """
    others = tuple(_prefix(other) for other in SECTIONS if other != section)
    known = {*known, *OTHER_VARIABLES}
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in known and not name.startswith(others):
            nearest = _nearest(name.removeprefix(_PREFIX), [each.removeprefix(_PREFIX) for each in known])
            nearest = nearest or _nearest(name.removeprefix(_PREFIX).partition("_")[0], map(str.upper, SECTIONS))
            ending = "_..." if nearest.lower() in SECTIONS else ""
            all_there_are = f"flags stand in {_prefix(section)}..." if section else f"there are {', '.join(sorted(known))}"
            meaning = f"did you mean {_PREFIX}{nearest}{ending}?" if nearest else all_there_are
            return f"the environment variable {name} is not known: {meaning}"
    return ""


def stray_table(document: Mapping[str, object]) -> str:
    """What is wrong with the first top-level entry of a TOML file that no program reads; empty without one."""
    for name, entry in document.items():
        if name not in SECTIONS:
            nearest = _nearest(name, SECTIONS)
            meaning = f"did you mean [{nearest}]?" if nearest else f"tables are {', '.join(f'[{each}]' for each in SECTIONS)}"
            return f"the table [{name}] is not known: {meaning}" if isinstance(entry, dict) else f"{name} stands in no table: {meaning}"
        if not isinstance(entry, dict):
            return f"{name} has to be a table: [{name}]"
        if tables := [key for key, value in entry.items() if isinstance(value, dict)]:
            return f"the table [{name}.{tables[0]}] is not known: [{name}] has no tables of its own"
    return ""


def _is_service_link(name: str, value: str) -> bool:
    if not name.startswith(_PREFIX):
        return False
    return bool(_LINK_NAME.search(name)) or (name.endswith("_PORT") and bool(_LINK_VALUE.match(value)))


def _prefix(section: str) -> str:
    return f"{_PREFIX}{section.upper()}_"


def _nearest(name: str, names: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.75)), "")
