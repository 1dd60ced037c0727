"""A Lease of Kubernetes (coordination.k8s.io/v1), by plain HTTPS with what every pod has."""

import http.client
import json
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from control_plane.edge.lease.keeper import LeaseRecord, LeaseUnreachable
from pypto_serving.process.start_up import StartUpError

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class KubernetesApi:
    """The API server, and what a pod shows to it."""

    host: str
    port: int
    token: Path  # replaced by the kubelet now and then: read at every call
    ca: Path


def api_of_pod(environment: Mapping[str, str], directory: Path = _SERVICE_ACCOUNT) -> KubernetesApi:
    """The API server of the pod that this process runs in; raises StartUpError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    api = KubernetesApi(host, int(port), directory / "token", directory / "ca.crt")
    if not host or not api.token.is_file() or not api.ca.is_file():
        raise StartUpError(f"--lease-kubernetes needs a pod with a service account: KUBERNETES_SERVICE_HOST, {api.token} and {api.ca}")
    return api


class KubernetesLeaseStore:
    """Reads and writes one Lease; the API server refuses to replace another version than the one seen."""

    def __init__(self, api: KubernetesApi, namespace: str, name: str, timeout_seconds: float) -> None:
        self._api = api
        self._name = name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._timeout_seconds = timeout_seconds
        self._lease: dict[str, Any] = {}  # as it was last seen

    def read(self) -> LeaseRecord | None:
        status, answer = self._call("GET", f"{self._collection}/{self._name}")
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise LeaseUnreachable(_refusal("reading the Lease", status, answer))
        return self._record(answer)

    def write(self, holder: str, seconds: float, seen: LeaseRecord | None) -> LeaseRecord | None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(self._lease.get("spec") or {}) if seen else {}
        if spec.get("holderIdentity", "") != holder:
            spec |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions", -1)) + 1}
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": math.ceil(seconds), "renewTime": now}
        lease: dict[str, Any] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        if seen:
            lease["metadata"] = dict(self._lease["metadata"]) | {"resourceVersion": seen.version}
            status, answer = self._call("PUT", f"{self._collection}/{self._name}", lease)
        else:
            status, answer = self._call("POST", self._collection, lease | {"metadata": {"name": self._name}})
        if status in (http.client.CONFLICT, http.client.NOT_FOUND):
            return None
        if status not in (http.client.OK, http.client.CREATED):
            raise LeaseUnreachable(_refusal("writing the Lease", status, answer))
        return self._record(answer)

    def _record(self, lease: dict[str, Any]) -> LeaseRecord:
        try:
            spec, version = lease.get("spec") or {}, str(lease["metadata"]["resourceVersion"])
            record = LeaseRecord(spec.get("holderIdentity") or "", float(spec.get("leaseDurationSeconds") or 0.0), version)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise LeaseUnreachable("the API server's answer is no Lease") from None
        self._lease = lease
        return record

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        try:
            context = ssl.create_default_context(cafile=str(self._api.ca))
            headers = {"Authorization": f"Bearer {self._api.token.read_text().strip()}", "Accept": "application/json"}
            connection = http.client.HTTPSConnection(self._api.host, self._api.port, timeout=self._timeout_seconds, context=context)
            try:
                connection.request(method, path, json.dumps(body) if body else None, headers | {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read(_MAX_ANSWER_BYTES))
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LeaseUnreachable(f"the API server at {self._api.host}:{self._api.port}: {error or type(error).__name__}") from None
        return response.status, answer if isinstance(answer, dict) else {}


def _refusal(attempt: str, status: int, answer: dict[str, Any]) -> str:
    return f"{attempt}: the API server says {status}: {answer.get('message', 'no reason')}"
