"""What can go wrong in a fake worker."""

import enum
from collections.abc import Iterator

from pypto_serving.wire.columns import pack_ids
from pypto_serving.worker.v1 import worker_pb2


class WorkerFault(enum.Enum):
    """What goes wrong when a step is run, once."""

    CRASH = "the process dies before it answers"
    RESTART = "the process dies, and another one is there at once"
    HANG = "the device stops, the process goes on beating, until release()"
    FREEZE = "nothing comes from the process any more, until release()"
    LATE = "the result comes after several beats"
    DUPLICATE = "the result comes twice"
    SKIP = "the result never comes, the next one does"
    GARBAGE = "the columns of the result do not fit each other"
    WRONG_TOKEN = "the result names another token than the one kept"
    WRONG_DIGEST = "the digest is wrong"
    ENDED_LANES = "lanes run nothing any more, as if they had ended"
    NO_LOGPROBS = "the result lacks the log probabilities that were asked for"
    STEP_ERROR = "the step fails as a whole"
    LANE_ERROR = "the result complains about its first lane"
    NO_FRAME = "an empty frame comes instead of the result"
    NO_BYTES = "bytes that are no frame come instead of the result"
    UNKNOWN_STEP = "a result of a step that was never sent comes before the right one"
    STALE_EPOCH = "a result of an earlier epoch comes before the right one"
    OTHER_EPOCH = "everything comes with another epoch, until the stream ends"
    END_OF_STREAM = "the stream ends, the process lives on"
    LET_GO = "the stream ends, and the process knows nothing of it any more"


#: Faults that keep the right answer back.
WITHHOLDING = frozenset({WorkerFault.SKIP, WorkerFault.NO_FRAME, WorkerFault.NO_BYTES})


def strays(fault: WorkerFault | None, result: worker_pb2.StepResult) -> Iterator[dict[str, object] | bytes]:
    """What comes before `result`, or in its place: fields of frames, or bytes that are none."""
    if fault is WorkerFault.DUPLICATE:
        yield {"result": result}
    elif fault is WorkerFault.NO_FRAME:
        yield {}
    elif fault is WorkerFault.NO_BYTES:
        yield b"\xff\xff\xff\xff"
    elif fault is WorkerFault.UNKNOWN_STEP:
        yield {"result": worker_pb2.StepResult(step_id=result.step_id + 1000)}


def spoil(fault: WorkerFault | None, result: worker_pb2.StepResult) -> None:
    """Make a right answer a wrong one."""
    if fault is WorkerFault.GARBAGE:
        result.lanes += b"\x01"
    elif fault is WorkerFault.WRONG_TOKEN:
        result.token_ids = pack_ids([1] * (len(result.token_ids) // 4))
    elif fault is WorkerFault.WRONG_DIGEST:
        result.digest ^= 1
    elif fault is WorkerFault.NO_LOGPROBS:
        del result.logprobs[:], result.prompt_logprobs[:]
    elif fault is WorkerFault.STEP_ERROR:
        result.error = "out of memory"
