"""Somebody else's errors, as part of a line of ours."""


def first_line(error: BaseException) -> str:
    """What an error says in its first line, or what it is where it says nothing."""
    return str(error).partition("\n")[0] or type(error).__name__
