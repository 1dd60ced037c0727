"""What an engine is made of, by a scheduler's configuration."""

from control_plane.edge.access.access import PeerAccess
from control_plane.edge.config import SchedulerConfig
from control_plane.edge.engine_thread import EngineThreadOptions
from control_plane.edge.worker_link.options import LinkOptions


def engine_options(config: SchedulerConfig, instance_id: str, fingerprint: str, to_workers: PeerAccess) -> EngineThreadOptions:
    """Options of the engine, its links and the port for announcements."""
    return EngineThreadOptions(
        scheduler=config.scheduler,
        engine=config.engine,
        links=LinkOptions(instance_id, fingerprint, to_workers.to_dial(), takeover=config.takeover, min_hang_seconds=config.hang_seconds),
        workers=config.workers,
        host=config.announce.host,
        announce_port=config.announce.port,
        announce_credentials=to_workers.credentials(),
    )
