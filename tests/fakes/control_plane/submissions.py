"""Commands of front ends, as messages."""

from typing import Any

from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.columns import pack_ids
from pypto_serving.worker.v1 import worker_pb2


def make_choice(number: int = 1, index: int = 0, resumed: tuple[int, ...] = (), **fields: Any) -> pb.Choice:
    """A choice with defaults."""
    sampling = fields.pop("sampling", worker_pb2.LaneSampling(top_p=1.0, repetition_penalty=1.0))
    return pb.Choice(index=index, number=number, sampling=sampling, resumed_token_ids=pack_ids(resumed), **fields)


def make_submission(request_id: str = "r", *choices: pb.Choice, **fields: Any) -> pb.Submission:
    """A submission with defaults, and one choice unless there are others."""
    defaults: dict[str, Any] = {"resume_key": b"key", "prompt_token_ids": pack_ids([1, 2, 3]), "max_tokens": 4}
    defaults["choices"] = choices or [make_choice()]
    return pb.Submission(request_id=request_id, **{**defaults, **fields})


def submit(request_id: str = "r", *choices: pb.Choice, **fields: Any) -> pb.Command:
    """The command for a submission with defaults."""
    return pb.Command(submit=make_submission(request_id, *choices, **fields))
