"""What a probe over HTTP gets."""

from urllib.error import HTTPError
from urllib.request import urlopen


def status_and_line(url: str) -> tuple[int, str]:
    """The status of an answer, and its one line."""
    try:
        with urlopen(url, timeout=30) as response:
            status, body = response.status, response.read()
    except HTTPError as error:
        status, body = error.code, error.read()
    (line,) = body.decode().splitlines()
    return status, line
