"""Manifests for Kubernetes: valid by the API's schemas, and true of the programs that they start."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.monitoring import DEPLOY

from clients.gateway.config import read_config as read_gateway_config
from control_plane.edge.flags.programs import read_front_end_config, read_scheduler_config
from worker.config import read_config as read_worker_config

Manifest = dict[str, Any]

OVERLAYS = ("base", "overlays/full", "overlays/npu")
#: The oldest and the newest API that we speak; probes by gRPC came with 1.27, preStop's sleep with 1.30.
VERSIONS = ("1.30", "1.37")
#: Kinds of operators, of which kubernetes_validate knows nothing.
_FOREIGN = {"Certificate", "Issuer", "ServiceMonitor"}
_PROGRAMS: dict[str, Callable[[Sequence[str]], Any]] = {
    "scheduler": read_scheduler_config,
    "frontend": read_front_end_config,
    "worker": read_worker_config,
    "gateway": read_gateway_config,
}


@cache
def manifests(overlay: str) -> list[Manifest]:
    """What would be applied; the test is skipped where nothing builds it."""
    kubectl = shutil.which("kubectl") or pytest.skip("no kubectl, whose kustomize builds the manifests")
    done = subprocess.run([kubectl, "kustomize", str(DEPLOY / "kubernetes" / overlay)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def workloads(overlay: str) -> dict[str, Manifest]:
    """Pod templates by name."""
    found = [each for each in manifests(overlay) if each["kind"] in ("Deployment", "StatefulSet")]
    return {each["metadata"]["name"]: each["spec"]["template"] for each in found}


def container(overlay: str, name: str) -> Manifest:
    """The only one of a workload."""
    (found,) = workloads(overlay)[name]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_would_take_every_manifest(overlay: str, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate: make setup")
    ours = [each for each in manifests(overlay) if each["kind"] not in _FOREIGN]
    assert len(ours) > 20
    for manifest in ours:
        validator.validate(manifest, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", sorted(_PROGRAMS))
def test_programs_take_their_arguments(overlay: str, name: str, tmp_path: Path) -> None:
    arguments = [
        each.replace("/models/model", str(tmp_path)).replace("$(POD_NAMESPACE)", "cell") for each in container(overlay, name)["args"]
    ]
    assert _PROGRAMS[name](arguments)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_budgets_and_policies_find_their_pods_and_ports(overlay: str) -> None:
    pods = workloads(overlay)
    for manifest in manifests(overlay):
        spec = manifest.get("spec") or {}
        selector = spec.get("podSelector", spec.get("selector"))
        if manifest["kind"] not in ("Service", "NetworkPolicy", "PodDisruptionBudget") or not selector:
            continue
        labels = selector.get("matchLabels", selector)
        matching = [pod for pod in pods.values() if labels.items() <= pod["metadata"]["labels"].items()]
        assert matching, manifest["metadata"]["name"]
        named = {port["name"] for pod in matching for port in pod["spec"]["containers"][0]["ports"]}
        asked_for = {port["targetPort"] for port in spec.get("ports", ())}
        asked_for |= {port["port"] for rule in spec.get("ingress", ()) for port in rule.get("ports", ())}
        assert asked_for <= named, manifest["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_service_puts_flags_into_the_environment(overlay: str) -> None:
    assert [pod["spec"]["enableServiceLinks"] for pod in workloads(overlay).values()] == [False] * 4


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", sorted(_PROGRAMS))
def test_probes_need_no_certificate_and_ask_for_what_there_is(overlay: str, name: str) -> None:
    port = "http" if name == "gateway" else "metrics"
    probes = {kind: container(overlay, name).get(f"{kind}Probe", {}).get("httpGet") for kind in ("startup", "liveness", "readiness")}
    assert probes == {
        "startup": {"port": port, "path": "/startupz"} if name != "gateway" else None,
        "liveness": {"port": port, "path": "/livez"},
        "readiness": {"port": port, "path": "/readyz"},
    }
    assert port in {each["name"] for each in container(overlay, name)["ports"]}


def test_certificates_name_who_is_dialled() -> None:
    certificates = {each["metadata"]["name"]: each["spec"] for each in manifests("overlays/full") if each["kind"] == "Certificate"}
    mounted = {
        volume["secret"]["secretName"]
        for pod in workloads("overlays/full").values()
        for volume in pod["spec"]["volumes"]
        if "secret" in volume
    }
    assert mounted == {f"{name}-tls" for name in _PROGRAMS} <= {each["secretName"] for each in certificates.values()}
    dialled = re.findall(r"--(?:scheduler|announce|target|worker-tls-name)=(\w+)", str(manifests("overlays/full")))
    assert set(dialled) == {"scheduler", "frontend", "worker"}
    assert all(host in certificates[host]["dnsNames"] for host in dialled)


def test_a_scheduler_may_do_with_its_lease_what_it_has_to() -> None:
    (role,) = [each for each in manifests("base") if each["kind"] == "Role"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "create", "update"}
    assert "--lease-kubernetes=$(POD_NAMESPACE)/scheduler" in container("base", "scheduler")["args"]
    assert [name for name, pod in workloads("base").items() if pod["spec"]["automountServiceAccountToken"]] == ["scheduler"]


def test_pods_outlive_their_drain() -> None:
    for name, pod in workloads("base").items():
        words = " ".join(container("base", name)["args"])
        drain = int(match[1]) if (match := re.search(r"--drain-seconds=(\d+)", words)) else 0
        pause = container("base", name).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert drain + pause + 5 <= pod["spec"]["terminationGracePeriodSeconds"], name


def test_autoscalers_ask_for_what_the_adapter_offers() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yml").read_text())["rules"]["external"]
    offered = {rule["name"]["as"] for rule in rules}
    scalers = [each["spec"]["metrics"] for each in manifests("overlays/full") if each["kind"] == "HorizontalPodAutoscaler"]
    asked_for = {metric["external"]["metric"]["name"] for metrics in scalers for metric in metrics if metric["type"] == "External"}
    assert asked_for == offered
