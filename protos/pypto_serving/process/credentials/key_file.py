"""Files of secret keys: one a line; blank lines and lines that begin with # do not count."""

from pathlib import Path

from pypto_serving.process.credentials.reloaded_files import FileRefused

#: What a key may consist of: visible ASCII.
HEADER_BYTES = frozenset(range(0x21, 0x7F))


def parse_keys(path: Path, content: bytes) -> tuple[bytes, ...]:
    """The keys in a file; raises FileRefused when there is none, or one that no header could carry."""
    lines = [line.strip() for line in content.splitlines()]
    keys = []
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith(b"#"):
            continue
        if not set(line) <= HEADER_BYTES:
            raise FileRefused(f"{path}, line {number}: a key consists of visible ASCII characters without blanks")
        keys.append(line)
    if not keys:
        raise FileRefused(f"{path}: holds no key")
    return tuple(keys)
