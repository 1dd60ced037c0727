"""Why a grammar can not be used."""

import re

_SOURCE_LINE = re.compile(r"\s*\d+ \||\s*\^+\s*$|\s*<non-verbose/>|\s*<state>")
_ORIGIN = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?|^failed to parse \"%json\": |^parser error: ", re.IGNORECASE)
_MAX_REASON = 300

#: What the library says when it has found that nothing matches.
_NOTHING_FITS = ("NoExtension", "NoExtensionBias")

#: What we say of oneOf: the option that the library recommends would only pretend to support it.
_ONE_OF = "oneOf is supported only where its options can not overlap, such as those of different types; anyOf lets them"


class GrammarRefused(ValueError):
    """A grammar can not be used; the message says why, in one line."""


def reason_of(error: str) -> str:
    """The library's message without the excerpt of our grammar, in one line."""
    lines = [line for line in _ORIGIN.sub("", error).splitlines() if not _SOURCE_LINE.match(line)]
    reason = " ".join(" ".join(lines).split())[:_MAX_REASON]
    if reason.startswith("oneOf constraints are not supported"):
        return _ONE_OF
    return "no text fits it" if reason in _NOTHING_FITS else reason
