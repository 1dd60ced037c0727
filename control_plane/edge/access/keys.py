"""Keys that callers must show."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from control_plane.edge.access.callers import Caller, parse_priorities
from pypto_serving.process.credentials.key_file import KeyLine, parse_keys
from pypto_serving.process.credentials.reloaded_files import FileRefused, ReloadedFiles

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Keys:
    """Some keys, of which any one will do. How long a check takes says nothing about them."""

    def __init__(self, callers: Iterable[tuple[bytes, Caller]]) -> None:
        """Keys, and whom each of them stands for."""
        self._callers = tuple((hashlib.sha256(key).digest(), caller) for key, caller in callers)

    def caller(self, key: bytes) -> Caller | None:
        """Who shows a key; None if it is none of ours."""
        digest = hashlib.sha256(key).digest()
        found = [caller for known, caller in self._callers if hmac.compare_digest(digest, known)]  # all of them: the first would tell
        return found[0] if found else None


ReloadedKeys = ReloadedFiles[Keys]


def watch_keys(name: str, path: Path) -> ReloadedKeys:
    """Read a file of keys and go on watching it; raises StartUpError."""

    def parse(contents: Sequence[bytes]) -> Keys:
        return Keys(_callers(path, contents[0]).items())

    return ReloadedFiles(name, [path], parse)


def _callers(path: Path, content: bytes) -> dict[bytes, Caller]:
    """Keys and their callers; raises FileRefused for a key that stands for two."""
    callers: dict[bytes, Caller] = {}
    for line in parse_keys(path, content):
        caller = _caller(path, line)
        if callers.setdefault(line.key, caller) != caller:
            raise FileRefused(f"{path}, line {line.number}: this key stands in an earlier line too, with another name or other priorities")
    return callers


def _caller(path: Path, line: KeyLine) -> Caller:
    """The caller that a line describes; without a name its digest tells it apart. Nothing of the line is shown: it may be a secret."""
    options = dict(option.partition("=")[::2] for option in line.options)
    is_repeated = len(options) < len(line.options)
    name = options.pop("name", "key-" + hashlib.sha256(line.key).hexdigest()[:16])
    priority = options.pop("priority", None)
    if options or is_repeated or not _NAME.fullmatch(name):
        known = "name=NAME, of 1 to 64 letters, digits, _, . and -, and priority=LOW..HIGH, each once"
        raise FileRefused(f"{path}, line {line.number}: behind a key may stand {known}")
    try:
        return Caller(name, parse_priorities(priority) if priority is not None else None)
    except ValueError as error:
        raise FileRefused(f"{path}, line {line.number}: priority: {error}") from None
