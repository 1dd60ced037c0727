"""What a server tells about itself and its model."""

from dataclasses import dataclass

from pypto_serving.inference.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `max_model_len` is 0 until the first worker is in session."""

    name: str
    architecture: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    end_token_ids: tuple[int, ...]
    has_chat_template: bool

    @classmethod
    def from_wire(cls, model: pb.Model) -> "Model":
        return cls(
            model.name,
            model.architecture,
            model.fingerprint,
            model.vocab_size,
            model.max_model_len,
            tuple(model.end_token_ids),
            model.has_chat_template,
        )


@dataclass(frozen=True, slots=True)
class Server:
    """A running control plane; `instance_id` changes at every start, `draining`: it lets what runs finish and takes no new requests."""

    version: str
    instance_id: str
    num_workers: int
    max_queued_requests: int
    uptime_seconds: float
    draining: bool

    @classmethod
    def from_wire(cls, server: pb.GetServerResponse) -> "Server":
        return cls(
            server.version,
            server.instance_id,
            server.num_workers,
            server.max_queued_requests,
            server.uptime_seconds,
            server.draining,
        )
