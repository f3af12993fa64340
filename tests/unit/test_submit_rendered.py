"""What Slurm and Kubernetes are sent: compared with golden files, and judged by the schema and by the shell."""

from __future__ import annotations

import base64
import gzip
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from builders import write_sweep

from raysweep.errors import ConfigError
from raysweep.submit.job import JobRequest
from raysweep.submit.kuberay_manifest import render_manifests
from raysweep.submit.places import make_submitter
from raysweep.submit.slurm_script import render_scripts
from raysweep.submit_schema import KubeRaySubmit, SlurmSubmit
from raysweep.sweep_file import load_sweep, submit_section

DATA = Path(__file__).parent / "data"
GOLDEN = DATA / "submit"
RAYJOB_SCHEMA = DATA / "rayjob_v1_schema.json.gz"

SLURM = {
    "slurm": {
        "partition": "gpu",
        "account": "lab",
        "qos": "high",
        "nodes": 2,
        "memory_per_node": "64G",
        "time": "02:00:00",
        "modules": ["cuda/12.8"],
        "setup": ["source /apps/env.sh"],
        "python": "/apps/venv/bin/python",
        "extra": ["--constraint=a100"],
    }
}
KUBERAY = {
    "kuberay": {
        "image": "registry.example/raysweep:1",
        "namespace": "ml",
        "workers_per_pod": 4,
        "worker_resources": {"rdma/ib": 1},
        "shared_memory": "16Gi",
        "host_network": True,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "node_selector": {"gpu": "h200"},
        "service_account": "sweeper",
        "image_pull_secrets": ["registry"],
        "queue": "team-a",
        "priority_class": "low",
        "labels": {"team": "a"},
        "results_claim": "sweeps",
    }
}


@pytest.fixture
def request_of_eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRequest:
    """A sweep over 8 workers with a GPU each, in a folder that is the working directory."""
    monkeypatch.chdir(tmp_path)
    workers = {"count": 8, "resources_per_worker": {"CPU": 4, "GPU": 1}}
    return JobRequest(sweep=load_sweep(write_sweep(tmp_path, workers=workers, global_batch_size=32, results="out")))


def _compare(name: str, text: str, request: JobRequest) -> None:
    """With what was read by a person; a golden file that is missing is written, and the test fails once."""
    golden = GOLDEN / name
    # A new key with a default changes the hash, and nothing that is looked at here.
    text = text.replace(request.sweep.sweep_sha256, "SHA256").replace(request.sweep.sweep_sha256[:12], "SHA12")
    if not golden.exists():
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
        pytest.fail(f"{golden} was written; read it")
    assert text == golden.read_text()


@pytest.mark.parametrize("name", ["job.sbatch", "driver.sh"])
def test_the_scripts_of_slurm_are_the_golden_ones(request_of_eight: JobRequest, name: str) -> None:
    options = submit_section(SLURM).slurm
    scripts = render_scripts(
        request_of_eight, options, working_dir=Path.cwd(), folder=Path.cwd() / "raysweep-jobs" / "job"
    )
    _compare(name, scripts[name].replace(str(Path.cwd()), "/home/me/project"), request_of_eight)


def test_the_manifests_of_kuberay_are_the_golden_ones(request_of_eight: JobRequest) -> None:
    shown = make_submitter("kuberay", submit_section(KUBERAY)).render(request_of_eight)
    package = yaml.safe_load(shown.partition("\n---\n")[0])["binaryData"]["package.zip"]
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(package))) as archive:
        assert archive.namelist() == ["sweep.yaml"]
    _compare("rayjob.yaml", shown.replace(package, "PACKAGE").replace(ray.__version__, "RAY_VERSION"), request_of_eight)


def _ray_job(request: JobRequest, **options: Any) -> dict[str, Any]:
    return render_manifests(request, KubeRaySubmit(**{"image": "x", "results_claim": "y", **options}))[1]


@pytest.mark.parametrize(
    "options",
    [
        KUBERAY["kuberay"],
        {"working_dir": None, "token": False},
        {"workers_per_pod": 3, "ttl_seconds": 0, "head_resources": {"cpu": 1}},
    ],
)
def test_a_ray_job_fits_the_schema_of_kuberay(request_of_eight: JobRequest, options: dict[str, Any]) -> None:
    _check(_ray_job(request_of_eight, **options))


def test_the_schema_knows_a_misspelt_key(request_of_eight: JobRequest) -> None:
    ray_job = _ray_job(request_of_eight)
    group = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]
    group["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(jsonschema.ValidationError, match="volumeMount"):
        _check(ray_job)


def _check(ray_job: dict[str, Any]) -> None:
    with gzip.open(RAYJOB_SCHEMA) as file:
        schema = json.load(file)
    _forbid_unknown(schema)
    jsonschema.validate(ray_job, schema)


def _forbid_unknown(schema: Any) -> None:
    """An object whose properties are listed has no others: Kubernetes would drop them without a word."""
    if isinstance(schema, dict):
        closed = {"additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"}
        if "properties" in schema and not closed & set(schema):
            schema["additionalProperties"] = False
        for inner in list(schema.values()):
            _forbid_unknown(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _forbid_unknown(inner)


def test_pods_hold_the_workers_and_what_they_ask_for(request_of_eight: JobRequest) -> None:
    spec = _ray_job(request_of_eight, workers_per_pod=3)["spec"]
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "12", "memory": "48Gi", "nvidia.com/gpu": "3"}
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert spec["backoffLimit"] == spec["submitterConfig"]["backoffLimit"] == 0


def test_nothing_is_rendered_without_an_image(request_of_eight: JobRequest) -> None:
    with pytest.raises(ConfigError, match=r"submit.kuberay.image: is required"):
        _ray_job(request_of_eight, image=None)


def test_results_that_would_be_gone_with_the_pod_are_refused(request_of_eight: JobRequest) -> None:
    with pytest.raises(ConfigError, match="results in a pod are gone with it"):
        _ray_job(request_of_eight, results_claim=None)


def test_a_memory_that_is_none_is_refused(request_of_eight: JobRequest) -> None:
    with pytest.raises(ConfigError, match=r"memory_per_worker: '1.5 GB'.*nearest valid: 16Gi"):
        _ray_job(request_of_eight, memory_per_worker="1.5 GB")


def test_a_container_of_slurm_is_asked_of_srun(request_of_eight: JobRequest) -> None:
    options = SlurmSubmit(container="registry#image:1", nodes=8, prefix=["nice", "-n 5"])
    here = Path.cwd()
    script = render_scripts(request_of_eight, options, working_dir=here, folder=here / "j")["job.sbatch"]
    assert f"--container-image='registry#image:1' --container-mounts={here}:{here}" in script
    assert "\n  nice '-n 5' ray symmetric-run" in script
    assert "export PATH=" not in script  # the container has its own


def test_slurm_takes_the_interpreter_that_submits(request_of_eight: JobRequest) -> None:
    scripts = render_scripts(request_of_eight, SlurmSubmit(), working_dir=Path.cwd(), folder=Path.cwd() / "j")
    assert f"exec {sys.executable} -m raysweep.cli.main run" in scripts["driver.sh"]
    assert f'export PATH={Path(sys.executable).parent}:"$PATH"' in scripts["job.sbatch"]
    assert "#SBATCH --gpus-per-node=8\n" in scripts["job.sbatch"]


@pytest.mark.parametrize(
    ("place", "key", "value", "rule"),
    [
        ("slurm", "time", 7200, "write the time in quotes"),
        ("slurm", "time", "2 hours", "a time limit is minutes"),
        ("slurm", "extra", ["constraint=a100"], "is no option of sbatch"),
        ("slurm", "partiton", "gpu", r"nearest valid: submit.slurm.partition"),
        ("ray", "pip", ["Torch>=2"], "is not installed by a runtime environment"),
        ("ray", "pip", ["nvidia_cublas_cu12"], "is not installed by a runtime environment"),
        ("kuberay", "imgae", "x", "nearest valid: submit.kuberay.image"),
        ("kuberay", "workers_per_pod", 0, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(place: str, key: str, value: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"submit\.{place}\.{key}.*{rule}"):
        submit_section({place: {key: value}})


def test_packages_that_are_not_torch_are_let_through() -> None:
    assert submit_section({"ray": {"pip": ["torchmetrics", "einops==0.8"]}}).ray.pip == ["torchmetrics", "einops==0.8"]
