"""Hello and Welcome."""

from pypto_serving.wire.checks import FrameError, check_name, check_range
from pypto_serving.wire.contract import FEATURES, MAX_FEATURES, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from pypto_serving.worker.v1 import worker_pb2 as pb
from worker.step import WorkerDescription


def check_hello(hello: pb.Hello) -> None:
    """Raise FrameError when a required field of `hello` is missing or a name is too long."""
    if not hello.control_plane_id:
        raise FrameError("hello.control_plane_id: empty; every instance of a control plane has its own")
    if not hello.model_fingerprint:
        raise FrameError("hello.model_fingerprint: empty; it has to be that of the model served")
    for field in ("control_plane_id", "model_fingerprint", "resume_incarnation"):
        if getattr(hello, field):
            check_name(f"hello.{field}", getattr(hello, field))
    check_range("hello.features (number)", len(hello.features), 0, MAX_FEATURES)


def common_version(hello: pb.Hello) -> int:
    """The newest version of the protocol that both sides speak, or 0."""
    newest = min(hello.protocol_version, PROTOCOL_VERSION)
    oldest = max(hello.min_protocol_version or hello.protocol_version, MIN_PROTOCOL_VERSION)
    return newest if newest >= oldest else 0


def encode_welcome(worker: WorkerDescription, protocol_version: int, epoch: int, resumed: bool, last_step_id: int) -> pb.Welcome:
    """The answer to Hello."""
    return pb.Welcome(
        protocol_version=protocol_version,
        features=FEATURES,
        epoch=epoch,
        incarnation=worker.incarnation,
        resumed=resumed,
        last_step_id=last_step_id,
        model_fingerprint=worker.model_fingerprint,
        weights_digest=worker.weights_digest(),
        numerics_id=worker.numerics_id,
        limits=pb.WorkerLimits(
            vocab_size=worker.vocab_size,
            max_model_len=worker.max_model_len,
            max_lanes=worker.max_lanes,
            max_step_tokens=worker.max_step_tokens,
            max_steps_in_flight=worker.max_steps_in_flight,
            lease_ms=round(worker.lease_seconds * 1000),
            num_partitions=worker.num_partitions,
        ),
        cache_groups=[
            pb.CacheGroup(
                name=group.name,
                num_layers=group.num_layers,
                page_tokens=group.page_tokens,
                rows_per_page=group.page_tokens,
                row_bytes=group.row_bytes,
                window_tokens=group.window_tokens,
                num_pages=group.num_pages,
            )
            for group in worker.cache_groups
        ],
    )
