"""Renders a sweep as a RayJob of KubeRay and a ConfigMap with its files."""

from __future__ import annotations

import base64
import importlib.metadata
import math
import re
import tempfile
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError
from raysweep.submit.driver_command import driver_command, in_shell, is_uri, sweep_inside
from raysweep.submit.job import JobRequest
from raysweep.submit.package import Package, pack
from raysweep.submit_schema import KubeRaySubmit
from raysweep.sweep_file import Sweep

PACKAGE_LIMIT_BYTES = 1_000_000
"""A ConfigMap holds 1 MiB in all; the driver's script is in it, too."""
TOO_LARGE = (
    "Name what the sweep does not need in .rayignore, set submit.kuberay.working_dir to a smaller folder, or put the "
    "files into the image and set it to none"
)
PACKAGE, WORK, RESULTS = "/raysweep/package", "/raysweep/work", "/raysweep/results"
ANNOTATION_SWEEP, ANNOTATION_RESULTS, ANNOTATION_STOPPED = (
    "raysweep/sweep-sha256",
    "raysweep/results",
    "raysweep/stopped",
)
LABEL = "raysweep"
"""Every object of ours has it; its value is the name that the attempts of a sweep share."""
_QUANTITY = re.compile(r"([0-9]+)([A-Za-z]*)")


def render_manifests(request: JobRequest, options: KubeRaySubmit) -> list[dict[str, Any]]:
    """The ConfigMap (core/v1) and the RayJob (ray.io/v1) of a sweep.

    Raises:
        ConfigError: without an image, without a place for the results, and where the files do not fit.
    """
    if not options.image:
        raise ConfigError(
            key="submit.kuberay.image",
            rule="is required: an image with raysweep, Ray, torch and DeepSpeed, e.g. --option image=registry/name:1",
        )
    if not is_uri(request.sweep.results) and not options.results_claim:
        raise ConfigError(
            key="submit.kuberay.results_claim",
            rule="results in a pod are gone with it: name a PersistentVolumeClaim here, or let the sweep file's "
            "`results` be a URI such as s3://bucket/sweep",
        )
    package = None if options.working_dir is None else pack(Path(options.working_dir), with_raysweep=False)
    return [_config_map(request, options, package), _ray_job(request, options, has_package=package is not None)]


def _config_map(request: JobRequest, options: KubeRaySubmit, package: Package | None) -> dict[str, Any]:
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request, options),
        # Its text is not the RayJob's entry point: the operator puts that unquoted into a shell command of its own.
        "data": {"driver.sh": _driver(request, options, package)},
    }
    if package is not None:
        manifest["binaryData"] = {"package.zip": base64.b64encode(_zipped(package)).decode()}
    return manifest


def _zipped(package: Package) -> bytes:
    with tempfile.TemporaryDirectory(prefix="raysweep-package-") as folder:
        zipped = Path(folder, "package.zip")
        package.write(zipped, compressed=True)
        size_bytes = zipped.stat().st_size
        package.check_size(
            limit_bytes=PACKAGE_LIMIT_BYTES, whose="a ConfigMap", remedy=TOO_LARGE, size_bytes=size_bytes
        )
        return zipped.read_bytes()


def _driver(request: JobRequest, options: KubeRaySubmit, package: Package | None) -> str:
    sweep = request.sweep
    command = driver_command(
        python=[options.python],
        sweep=str(sweep.path) if package is None else sweep_inside(sweep, package.root),
        address="auto",
        **in_shell(results_there(request)),
    )
    enter = "" if package is None else f"cd {WORK} || exit 4\n"
    return f"#!/usr/bin/env bash\n{enter}{command}\n"


def results_there(request: JobRequest) -> str:
    """The results' URI, or their folder in the volume."""
    return request.sweep.results if is_uri(request.sweep.results) else f"{RESULTS}/{request.base_id}"


def _ray_job(request: JobRequest, options: KubeRaySubmit, *, has_package: bool) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "rayVersion": importlib.metadata.version("ray"),
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": _pod(request, options, "ray-head", dict(options.head_resources), has_package=has_package),
        },
        "workerGroupSpecs": [_workers(request, options, has_package=has_package)],
    }
    if options.token:
        cluster["authOptions"] = {"mode": "token"}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(request, options),
        "spec": {
            "entrypoint": f"bash {PACKAGE}/driver.sh",
            "jobId": request.job_id,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": options.ttl_seconds,
            # A failure is told, not repeated: the second try would end with another exit code than the sweep's.
            "backoffLimit": 0,
            "submitterConfig": {"backoffLimit": 0},
            "rayClusterSpec": cluster,
        },
    }


def _metadata(request: JobRequest, options: KubeRaySubmit) -> dict[str, Any]:
    labels = {**options.labels, LABEL: request.base_id}
    if options.queue:
        labels["kueue.x-k8s.io/queue-name"] = options.queue
    if options.priority_class:
        labels["kueue.x-k8s.io/priority-class"] = options.priority_class
    return {
        "name": request.job_id,
        "namespace": options.namespace,
        "labels": labels,
        "annotations": {
            ANNOTATION_SWEEP: request.sweep.sweep_sha256,
            ANNOTATION_RESULTS: results_there(request),
        },
    }


def _workers(request: JobRequest, options: KubeRaySubmit, *, has_package: bool) -> dict[str, Any]:
    pods = math.ceil(request.sweep.file.workers.count / options.workers_per_pod)
    template = _pod(request, options, "ray-worker", worker_limits(request.sweep, options), has_package=has_package)
    if options.tolerations:
        template["spec"]["tolerations"] = options.tolerations
    if options.node_selector:
        template["spec"]["nodeSelector"] = options.node_selector
    return {
        "groupName": "workers",
        "replicas": pods,
        "minReplicas": pods,
        "maxReplicas": pods,
        "rayStartParams": {},
        "template": template,
    }


def worker_limits(sweep: Sweep, options: KubeRaySubmit) -> dict[str, str]:
    """The limits of a worker pod: what its workers ask Ray for, in Kubernetes' words.

    Raises:
        ConfigError: when `memory_per_worker` is no quantity.
    """
    asked, on_a_pod = sweep.file.workers.resources_per_worker, options.workers_per_pod
    quantity = _QUANTITY.fullmatch(options.memory_per_worker)
    if quantity is None:
        raise ConfigError(
            key="submit.kuberay.memory_per_worker",
            value=options.memory_per_worker,
            rule="is no whole quantity of Kubernetes",
            nearest="16Gi",
        )
    limits = {
        "cpu": str(max(1, math.ceil(asked.get("CPU", 1) * on_a_pod))),
        "memory": f"{int(quantity[1]) * on_a_pod}{quantity[2]}",
    }
    gpus = math.ceil(asked.get("GPU", 0) * on_a_pod)
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    return {**limits, **options.worker_resources}


def _pod(
    request: JobRequest, options: KubeRaySubmit, container: str, limits: dict[str, str], *, has_package: bool
) -> dict[str, Any]:
    volumes, mounts = _volumes(request, options, container, has_package=has_package)
    main: dict[str, Any] = {
        "name": container,
        "image": options.image,
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": mounts,
    }
    spec: dict[str, Any] = {"containers": [main], "volumes": volumes}
    if has_package:
        main["env"] = [{"name": "PYTHONPATH", "value": WORK}]
        spec["initContainers"] = [
            {
                "name": "unpack",
                "image": options.image,
                "command": [options.python, "-m", "zipfile", "-e", f"{PACKAGE}/package.zip", WORK],
                "volumeMounts": [mount for mount in mounts if mount["mountPath"] in (PACKAGE, WORK)],
            }
        ]
    if options.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    return {"spec": spec}


def _volumes(
    request: JobRequest, options: KubeRaySubmit, container: str, *, has_package: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes of a pod, and where its container sees them."""
    shared: dict[str, Any] = {"medium": "Memory"}
    if options.shared_memory:
        shared["sizeLimit"] = options.shared_memory
    sources: dict[str, tuple[str, dict[str, Any]]] = {
        "package": (PACKAGE, {"configMap": {"name": request.job_id}}),
        # Ray's object store and the ranks of a pod talk through it; Kubernetes gives 64 MiB where nothing is asked.
        "shared-memory": ("/dev/shm", {"emptyDir": shared}),
    }
    if has_package:
        sources["work"] = (WORK, {"emptyDir": {}})
    if not is_uri(request.sweep.results):
        # The driver runs on the head; the ranks' logs stay in their pods.
        claim = {"persistentVolumeClaim": {"claimName": options.results_claim}}
        sources["results"] = (RESULTS, claim if container == "ray-head" else {"emptyDir": {}})
    volumes = [{"name": name, **source} for name, (_, source) in sources.items()]
    return volumes, [{"name": name, "mountPath": path} for name, (path, _) in sources.items()]
