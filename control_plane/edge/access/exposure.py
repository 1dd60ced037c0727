"""What a configuration leaves open to other machines."""

from control_plane.edge.config import Config
from pypto_serving.process.address import is_loopback


def exposures(config: Config) -> list[str]:
    """One sentence for each door that has no lock; none for a server that only its own machine reaches."""
    if is_loopback(config.host):
        return []
    access, found = config.access, []
    clients_need_certificates = access.tls is not None and access.tls.ca is not None
    if access.api_keys_file is None and not clients_need_certificates:
        found.append(f"everybody who reaches {config.host} may use this server: give it --api-keys-file or --tls-client-ca")
    elif access.tls is None:
        found.append("keys and prompts travel in plain text: give --tls-cert and --tls-key")
    if access.worker_tls is None or access.worker_tls.cert is None:
        found.append(f"everybody who reaches {config.host} may announce a worker: give --worker-tls-ca and --worker-tls-cert")
    return found
