"""What an engine is made of, by a scheduler's configuration."""

from typing import TYPE_CHECKING

from control_plane.edge.access.access import PeerAccess
from control_plane.edge.config import SchedulerConfig
from control_plane.edge.engine_thread import EngineThreadOptions
from control_plane.edge.model_files import UNKNOWN_MAX_POSITIONS, ModelIdentity
from control_plane.edge.worker_link.options import LinkOptions
from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.model_directory import name_model

if TYPE_CHECKING:
    from control_plane.edge.model_directory import ServedModel  # which takes a while to import


def limits(config: SchedulerConfig) -> dict[str, float]:
    """What bounds queue and steps, by the names of the flags."""
    return {
        "max_queued_requests": config.engine.max_queued_requests,
        "max_queued_tokens": config.engine.max_queued_tokens,
        "max_num_seqs": config.scheduler.max_sequences,
        "max_step_tokens": config.scheduler.max_step_tokens,
        "steps_in_flight": config.scheduler.max_steps_in_flight,
    }


def engine_options(
    config: SchedulerConfig, instance_id: str, model: "ServedModel | ModelIdentity", to_workers: PeerAccess
) -> EngineThreadOptions:
    """Options of the engine, its links and the port for announcements; raises StartUpError for limits that the model does not have."""
    wanted, allowed = config.scheduler.max_model_len, model.max_positions
    if wanted is not None and allowed != UNKNOWN_MAX_POSITIONS and wanted > allowed:
        raise StartUpError(f"--max-model-len {wanted}: {config.model / 'config.json'} allows {allowed}: lower it, or leave it out")
    return EngineThreadOptions(
        scheduler=config.scheduler,
        engine=config.engine,
        links=LinkOptions(
            control_plane_id=instance_id,
            model_fingerprint=model.fingerprint,
            model_name=name_model(config.model),
            tls=to_workers.to_dial(),
            takeover=config.takeover,
            min_hang_seconds=config.hang_seconds,
        ),
        workers=config.workers,
        host=config.announce.host,
        announce_port=config.announce.port,
        announce_credentials=to_workers.credentials(),
        process_name="scheduler" if config.front_ends else "control plane",
        otlp_endpoint=config.otlp_endpoint,
    )
