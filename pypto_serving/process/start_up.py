"""The one error that ends a start-up with a clear line."""


class StartUpError(Exception):
    """A process cannot start; the message is one line for the person who started it.

    `exit_code` is 2 for a wrong configuration or model, and 1 for anything else.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
