"""Plain words for why no connection came about, where gRPC's own are cryptic."""

import re

_PROBLEMS = (
    (r"WRONG_VERSION_NUMBER", "it speaks plain text: leave TLS off"),
    (r"certificate has expired", "its certificate has expired"),
    (r"certificate is not yet valid", "its certificate is not valid yet"),
    (r"CERTIFICATE_VERIFY_FAILED", "its certificate comes from no authority that is trusted here: name the one that it comes from"),
    (r"Hostname Verification Check failed", "its certificate is for another host"),
)
#: A server that wants TLS, or a certificate, just hangs up; so does one that was reached before, when it dies.
_HANGS_UP = (
    r"(failed to connect|handshak).*(Socket closed|reset by peer)",
    "it hangs up: it may ask for TLS, or for a client's certificate",
)


def connection_problem(details: str, was_reached: bool = False) -> str | None:
    """What is wrong with a server, or with how it was called, by the details of a status; None where these speak for themselves."""
    problems = _PROBLEMS if was_reached else (*_PROBLEMS, _HANGS_UP)
    return next((problem for pattern, problem in problems if re.search(pattern, details)), None)


def explained(status: str, details: str | None, flags: str = "") -> str:
    """A status as one line: the problem in plain words and the flags that mend it where we know it, else its own details."""
    problem = connection_problem(details or "")
    if problem is None:
        return f"{status}: {details}" if details else status
    return f"{status}: cannot be talked to: {problem}" + (f" (flags: {flags})" if flags else "")
