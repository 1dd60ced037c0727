"""What the front end needs of the engine, in this process or in another one. Belongs to the clients' event loop."""

from typing import Protocol

from control_plane.engine.ports import Failure, GenerationRequest
from control_plane.engine.snapshot import EngineSnapshot


class EngineView(Protocol):
    """What may be read of the engine."""

    @property
    def snapshot(self) -> EngineSnapshot:
        """Its latest snapshot, some tenths of a second old."""

    def seconds_since_turn(self) -> float:
        """How long ago its event loop turned, as far as one knows here."""


class EnginePort(EngineView, Protocol):
    """Takes this front end's requests; their output goes to its `FrontEnd`. Requests and choices that are not live are ignored."""

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request over: it is accepted or fails."""

    def finish(self, number: int) -> None:
        """End a choice, whose text has come to its end; its SequenceFinished follows."""

    def hold(self, request_id: str) -> None:
        """Let a request pause: its client is slow."""

    def unhold(self, request_id: str) -> None:
        """Let a request go on."""

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        """End a request; its RequestFailed follows."""

    async def abort(self, request_id: str) -> bool:
        """End a request of whatever front end; returns whether it was live. Raises TimeoutError when nobody is there who knows."""

    def drain(self) -> None:
        """Refuse new requests and end those that never ran."""
