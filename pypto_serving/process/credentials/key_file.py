"""Files of secret keys: one a line, with options behind it; blank lines and lines that begin with # do not count."""

from dataclasses import dataclass
from pathlib import Path

from pypto_serving.process.credentials.reloaded_files import FileRefused

#: What a key may consist of: visible ASCII.
HEADER_BYTES = frozenset(range(0x21, 0x7F))


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key, and the words behind it."""

    number: int
    key: bytes
    options: tuple[str, ...] = ()


def parse_keys(path: Path, content: bytes) -> tuple[KeyLine, ...]:
    """The keys in a file; raises FileRefused when there is none, or one that no header could carry."""
    keys = []
    for number, line in enumerate(content.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        if not all(set(word) <= HEADER_BYTES for word in words):
            raise FileRefused(f"{path}, line {number}: a key, and what stands behind it, consists of visible ASCII characters")
        keys.append(KeyLine(number, words[0], tuple(word.decode() for word in words[1:])))
    if not keys:
        raise FileRefused(f"{path}: holds no key")
    return tuple(keys)
