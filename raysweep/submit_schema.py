"""The `submit` section of a sweep file: what each place needs to know to which a sweep can be sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from raysweep.errors import ConfigError
from raysweep.section import NotNegative, Positive, Section
from raysweep.yaml_numbers import load_yaml

PLACES = ("ray", "slurm", "kuberay")
NEVER_INSTALLED = ("torch", "torchvision", "torchaudio", "deepspeed", "ray")
"""What the cluster's own environment brings; `nvidia-*` likewise."""

_SLURM_TIME = re.compile(r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}")


class RaySubmit(Section):
    """A Ray cluster that is up, reached through its dashboard (Ray Jobs)."""

    address: str | None = None
    """The dashboard, e.g. http://head:8265; what Ray itself finds where not given. `--address` overrides it."""
    working_dir: str | None = "."
    """The folder that is sent, less .git and what .gitignore and .rayignore name; none: the cluster has the files."""
    send_raysweep: bool = True
    """Send this very raysweep along, so that the cluster runs the same version."""
    python: str = "python"
    """The interpreter on the cluster."""
    pip: list[str] = Field(default_factory=list)
    """Packages that a runtime environment adds there; never torch, DeepSpeed or Ray."""
    results: str | None = None
    """Folder on the cluster's head for the results of a sweep that names no URI; ~/raysweep/<job> where not given."""
    stop_seconds: Positive = 60
    """How long a sweep that is stopped may take to write its results, before it is killed."""

    @field_validator("pip")
    @classmethod
    def _leaves_torch_alone(cls, packages: list[str]) -> list[str]:
        for package in packages:
            found = re.match(r"[A-Za-z0-9._-]+", package.strip())
            name = found[0].lower().replace("_", "-") if found else ""
            if name in NEVER_INSTALLED or name.startswith("nvidia-"):
                raise ValueError(
                    f"{package!r} is not installed by a runtime environment: it would take minutes and gigabytes on "
                    f"every node, and another build than the cluster's; the cluster's own environment brings "
                    f"{', '.join(NEVER_INSTALLED)}"
                )
        return packages


class SlurmSubmit(Section):
    """A Slurm cluster, from a machine that has `sbatch` and sees the nodes' file system."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nodes: Positive = 1
    gpus_per_node: NotNegative | None = None
    """What the workers of a node ask for, where not given."""
    cpus_per_node: Positive | None = None
    """What the workers of a node ask for, where not given."""
    memory_per_node: str | None = None
    """As `sbatch --mem` takes it, e.g. 64G."""
    time: str | None = None
    """Time limit of one allocation, as `sbatch --time` takes it; in quotes."""
    stop_before_seconds: Positive = 300
    """So long before the time limit the sweep stops, writes its results, and the job is queued again."""
    allocations: Positive = 10
    """Most allocations that one job may use, the first included."""
    exclusive: bool = True
    """Whole nodes: `ray symmetric-run` ends with `ray stop`, which ends every Ray of the user on the node."""
    modules: list[str] = Field(default_factory=list)
    setup: list[str] = Field(default_factory=list)
    """Shell lines before anything starts, e.g. `source /apps/env.sh`."""
    python: str | None = None
    """The interpreter on the nodes; the one that submits where not given."""
    container: str | None = None
    """An image for pyxis (`srun --container-image`)."""
    prefix: list[str] = Field(default_factory=list)
    """Words before the command on every node, e.g. [apptainer, exec, --nv, image.sif]."""
    extra: list[str] = Field(default_factory=list)
    """Further options of sbatch, e.g. --constraint=a100."""
    folder: str = "raysweep-jobs"
    """Where the script, the log and the exit code of each job are kept; every node has to see it."""

    @field_validator("time", mode="before")
    @classmethod
    def _slurm_time(cls, value: Any) -> Any:
        if isinstance(value, int):
            raise ValueError('YAML reads this as a number; write the time in quotes, e.g. "02:00:00"')
        if isinstance(value, str) and not _SLURM_TIME.fullmatch(value):
            raise ValueError("a time limit is minutes, hours:minutes:seconds or days-hours:minutes:seconds")
        return value

    @field_validator("extra")
    @classmethod
    def _options_only(cls, options: list[str]) -> list[str]:
        for option in options:
            if not option.startswith("-") or "\n" in option:
                raise ValueError(f"{option!r} is no option of sbatch; write for example --constraint=a100")
        return options


class KubeRaySubmit(Section):
    """A Kubernetes cluster with the KubeRay operator."""

    image: str | None = None
    """The image of every pod, with raysweep, Ray, torch and DeepSpeed in it; nothing is rendered without one."""
    namespace: str = "default"
    context: str | None = None
    """The context of the kubeconfig; the current one where not given."""
    working_dir: str | None = "."
    """The folder that is sent, as for ray; it has to fit into a ConfigMap. none: the image has the files."""
    python: str = "python"
    workers_per_pod: Positive = 1
    memory_per_worker: str = "16Gi"
    """Host memory, in Kubernetes' words."""
    head_resources: dict[str, str] = Field(default_factory=lambda: {"cpu": "2", "memory": "8Gi"})
    worker_resources: dict[str, str] = Field(default_factory=dict)
    """Further limits of a worker pod, e.g. {rdma/ib: 1}."""
    shared_memory: str | None = None
    """Size limit of /dev/shm, a memory volume; the pod's memory limit where not given."""
    host_network: bool = False
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    node_selector: dict[str, str] = Field(default_factory=dict)
    service_account: str | None = None
    image_pull_secrets: list[str] = Field(default_factory=list)
    queue: str | None = None
    """A LocalQueue of Kueue."""
    priority_class: str | None = None
    """A WorkloadPriorityClass of Kueue."""
    labels: dict[str, str] = Field(default_factory=dict)
    results_claim: str | None = None
    """A PersistentVolumeClaim for the results of a sweep that names no URI."""
    token: bool = True
    """Ask for a token on every connection to Ray (authOptions); the operator makes it."""
    ttl_seconds: NotNegative = 3600
    """How long pods and logs are kept after the end."""

    @field_validator("head_resources", "worker_resources", "node_selector", "labels", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any) -> Any:
        return {key: str(item) for key, item in value.items()} if isinstance(value, dict) else value


class SubmitSection(Section):
    """Where `raysweep submit` sends the sweep. It changes nothing that is measured."""

    to: Literal["ray", "slurm", "kuberay"] | None = None
    """`--to` overrides it."""
    ray: RaySubmit = RaySubmit()
    slurm: SlurmSubmit = SlurmSubmit()
    kuberay: KubeRaySubmit = KubeRaySubmit()


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """Keys of a part of the section as `key=value` gives them: lists and mappings in YAML's short form, the rest text.

    Raises:
        ConfigError: when one is not written so.
    """
    given: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(key="--option", value=option, rule="write it as key=value")
        given[key.strip()] = _value(key, value)
    return given


def _value(key: str, value: str) -> Any:
    if not value.startswith(("[", "{")):
        # Not read as YAML, for which 02:00:00 is the number 7200; the schema knows which keys are numbers.
        return None if value == "none" else value
    try:
        return load_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigError(key=f"--option {key}", value=value, rule=" ".join(str(error).split())) from None
