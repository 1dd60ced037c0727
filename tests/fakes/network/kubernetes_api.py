"""An API server of Kubernetes that knows Leases only, and checks what a real one checks of them."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fakes.network.certificates import CertificateDirectory

from control_plane.edge.lease.kubernetes_store import KubernetesApi

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/serving/leases"


class KubernetesLeases:
    """Listens on a free port until closed; `leases` by name, each with its resourceVersion."""

    def __init__(self, directory: Path) -> None:
        certificates = CertificateDirectory(directory)
        self.files = certificates.issue("server")
        self.token = directory / "token"
        self.token.write_text("secret\n")
        self.leases: dict[str, dict[str, Any]] = {}
        self.refusal: int | None = None  # status of every answer
        self._version = 0
        self._lock = threading.Lock()
        handler = type("_Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        assert self.files.cert
        context.load_cert_chain(self.files.cert, self.files.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def api(self) -> KubernetesApi:
        """How a pod reaches it."""
        assert self.files.ca
        return KubernetesApi("127.0.0.1", self._server.server_port, self.token, self.files.ca)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer."""
        name = path.removeprefix(_LEASES).removeprefix("/")
        with self._lock:
            if self.refusal:
                return self.refusal, {"message": "not today"}
            if token != f"Bearer {self.token.read_text().strip()}":
                return 401, {"message": "Unauthorized"}
            if not path.startswith(_LEASES):
                return 404, {"message": "no such thing"}
            if method == "POST":
                return self._create(body)
            if name not in self.leases:
                return 404, {"message": f'leases "{name}" not found'}
            return (200, self.leases[name]) if method == "GET" else self._replace(name, body)

    def _create(self, lease: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = lease["metadata"]["name"]
        if "resourceVersion" in lease["metadata"]:
            return 400, {"message": "resourceVersion should not be set on objects to be created"}
        if name in self.leases:
            return 409, {"message": f'leases "{name}" already exists'}
        return 201, self._keep(name, lease | {"metadata": {"name": name, "uid": "1-2-3"}})

    def _replace(self, name: str, lease: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        current = self.leases[name]["metadata"]
        if lease["metadata"]["resourceVersion"] != current["resourceVersion"] or lease["metadata"]["uid"] != current["uid"]:
            return 409, {"message": "the object has been modified"}
        return 200, self._keep(name, lease)

    def _keep(self, name: str, lease: dict[str, Any]) -> dict[str, Any]:
        assert (lease["apiVersion"], lease["kind"]) == ("coordination.k8s.io/v1", "Lease")
        assert type(lease["spec"]["leaseDurationSeconds"]) is int and lease["spec"]["leaseDurationSeconds"] > 0
        self._version += 1
        self.leases[name] = lease | {"metadata": lease["metadata"] | {"resourceVersion": str(self._version)}}
        return self.leases[name]


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesLeases

    def _answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        status, answer = self.api.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        pass
