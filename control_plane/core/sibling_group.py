"""The choices of one request, which compute their prompt once."""


class SiblingGroup:
    """Made once per request with several choices, and given to the sequence of each."""
