"""What the worker links tell the metrics."""

from typing import Protocol


class LinkMetrics(Protocol):
    """Takes what happens on the links; every call is made on the engine's event loop and must not block.

    `address` is the host:port that is dialled. Times are in seconds.
    """

    def worker_connected(self, address: str, epoch: int) -> None:
        """A session began; `epoch` is ours at the worker."""

    def worker_disconnected(self, address: str) -> None:
        """The session is over."""

    def worker_forgotten(self, address: str) -> None:
        """The worker is not looked for any more; its series can go."""

    def worker_silence(self, address: str, seconds: float) -> None:
        """Time since the last frame of a worker in session; several times per lease."""

    def step_sent(self, address: str, num_bytes: int) -> None:
        """A step of so many bytes went out."""

    def session_resumed(self, address: str) -> None:
        """The stream broke, and the session went on over a new one."""

    def digest_mismatched(self, address: str) -> None:
        """Both sides disagree on the state after a step, or a result is missing."""

    def worker_reset(self, address: str) -> None:
        """A worker was told to discard everything."""
