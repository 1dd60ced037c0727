"""The Compose file and the images, as far as they can be read."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.monitoring import DEPLOY

from clients.gateway.config import read_config as read_gateway_config
from control_plane.edge.flags.programs import read_config
from worker.config import read_config as read_worker_config

ROOT = DEPLOY.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize(
    ("service", "program", "further"),
    [("control", read_config, ()), ("worker", read_worker_config, ("--advertise=host",)), ("gateway", read_gateway_config, ())],
)
def test_programs_take_their_arguments(
    service: str, program: Callable[[Sequence[str]], Any], further: tuple[str, ...], tmp_path: Path
) -> None:
    assert program([*(each.replace("/models/model", str(tmp_path)) for each in SERVICES[service]["command"]), *further])


def test_what_prometheus_scrapes_is_served() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target.split(":")[0] for job in jobs for group in job.get("static_configs", ()) for target in group["targets"]]
    names = [name for job in jobs for group in job.get("dns_sd_configs", ()) for name in group["names"]]
    assert {*targets, *names} == {"control", "worker", "gateway"} <= set(SERVICES)


def test_every_mounted_file_is_there() -> None:
    volumes = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    mounted = [volume for volume in volumes if volume.startswith("./")]
    assert len(mounted) == 3 and all((DEPLOY / path).exists() for path in mounted)


def test_the_image_that_is_built_is_the_one_that_runs() -> None:
    for service in ("control", "worker", "gateway"):
        build = SERVICES[service]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() in DOCKERFILES
        assert SERVICES[service]["image"] == f"pypto-serving/{Path(build['dockerfile']).stem}"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_images_install_extras_that_there_are_and_start_programs_that_there_are(dockerfile: Path) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    text = dockerfile.read_text()
    extras, programs = set(re.findall(r"whl\)\[([\w-]+)\]", text)), set(re.findall(r"pypto-serving-\w+", text.partition("ENTRYPOINT")[2]))
    assert len(extras) == len(programs) == 1
    assert all(f"\n{extra} = [" in project for extra in extras) and all(f"\n{program} = " in project for program in programs)


def test_only_images_with_a_driver_run_as_root() -> None:
    assert [path.stem for path in DOCKERFILES if "USER 10001" not in path.read_text()] == ["worker-npu"]
