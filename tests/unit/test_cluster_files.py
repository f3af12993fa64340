"""The files of `cluster/`: held against the schemas of those who read them, with no secret in any."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from kubernetes_schema import validate

CLUSTER = Path(__file__).parents[2] / "cluster"
RAY_SCHEMA = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
RAYCLUSTER_SCHEMA = Path(__file__).parent / "data" / "raycluster_v1_schema.json.gz"
LAUNCHED = ("on-prem", "aws", "gcp")
FILES = sorted(path for path in CLUSTER.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN|hf_[A-Za-z0-9]{20,}|RAY_AUTH_TOKEN=[A-Za-z0-9]+|\b[0-9a-f]{32,}\b|password\s*[:=]\s*\S+"
)


def _loaded(*names: str) -> dict[str, Any]:
    return dict(yaml.safe_load(CLUSTER.joinpath(*names).read_text()))


def _launcher(place: str) -> dict[str, Any]:
    return _loaded(place, "cluster.yaml")


@pytest.mark.parametrize("place", LAUNCHED)
def test_rays_launcher_takes_the_file(place: str) -> None:
    jsonschema.Draft7Validator(json.loads(RAY_SCHEMA.read_text())).validate(_launcher(place))


def test_rays_schema_refuses_a_misspelt_key() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(json.loads(RAY_SCHEMA.read_text())).validate(_launcher("aws") | {"max_worker": 2})


@pytest.mark.parametrize("place", ["aws", "gcp"])
def test_the_head_type_is_one_of_the_types_and_holds_no_worker(place: str) -> None:
    plain = _launcher(place)
    assert plain["available_node_types"][plain["head_node_type"]]["resources"] == {"CPU": 0}
    assert sum(each.get("max_workers", 0) for each in plain["available_node_types"].values()) == plain["max_workers"]


@pytest.mark.parametrize("place", LAUNCHED)
def test_every_ray_that_is_started_asks_for_the_token(place: str) -> None:
    plain = _launcher(place)
    starts = [each for key in ("head", "worker") for each in plain[f"{key}_start_ray_commands"] if "ray start" in each]
    assert len(starts) == 2 and all("RAY_AUTH_MODE=token" in each for each in starts)


def test_kuberay_takes_the_cluster() -> None:
    plain = _loaded("kuberay", "raycluster.yaml")
    validate(plain, RAYCLUSTER_SCHEMA)
    assert plain["spec"]["authOptions"] == {"mode": "token"}
    plain["spec"]["headGroupSpec"]["templat"] = {}
    with pytest.raises(jsonschema.ValidationError):
        validate(plain, RAYCLUSTER_SCHEMA)


def test_the_ray_of_the_manifest_is_the_one_that_was_tested() -> None:
    pinned = re.search(r"^ray(?:\[.*\])?==(\S+)", (CLUSTER.parent / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned and _loaded("kuberay", "raycluster.yaml")["spec"]["rayVersion"] == pinned.group(1)


def test_the_shell_reads_the_script_of_slurm() -> None:
    subprocess.run(["bash", "-n", str(CLUSTER / "slurm" / "sweep.sbatch")], check=True)


def test_the_image_has_its_base_as_an_argument_and_the_same_constraints() -> None:
    text = (CLUSTER / "image" / "Dockerfile").read_text()
    assert "ARG BASE=" in text and "FROM ${BASE}" in text
    installs = [part for part in text.split("pip install")[1:]]
    assert installs and all("--constraint /opt/raysweep/constraints.txt" in each for each in installs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CLUSTER)))
def test_no_file_holds_a_secret(path: Path) -> None:
    assert SECRET.findall(path.read_text()) == []


def test_a_secret_would_be_found() -> None:
    assert SECRET.search("export RAY_AUTH_TOKEN=abc") and SECRET.search("token: " + "0f" * 16)


@pytest.mark.parametrize("place", [*LAUNCHED, "kuberay", "slurm", "local"])
def test_each_place_says_how_to_start_prove_use_and_end_it(place: str) -> None:
    text = (CLUSTER / place / "README.md").read_text()
    assert all(word in text for word in ("Start", "Prove it", "quickstart", "Take it down"))
