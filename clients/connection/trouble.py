"""Says in plain words why no connection came about, where gRPC's own words are cryptic."""

import re

_TROUBLES = (
    (r"WRONG_VERSION_NUMBER", "it speaks plain text: leave TLS off"),
    (r"certificate has expired", "its certificate has expired"),
    (r"certificate is not yet valid", "its certificate is not valid yet"),
    (r"CERTIFICATE_VERIFY_FAILED", "its certificate comes from no authority that is trusted here: name the one that it comes from"),
    (r"Hostname Verification Check failed", "its certificate is for another host"),
    # A server that wants TLS, or a certificate, just hangs up.
    (r"failed to connect.*(Socket closed|reset by peer)", "it hangs up: it may ask for TLS, or for a client's certificate"),
)


def trouble_of(details: str) -> str | None:
    """What is wrong with the server, or with how it was called; None where the details speak for themselves."""
    return next((trouble for pattern, trouble in _TROUBLES if re.search(pattern, details)), None)
