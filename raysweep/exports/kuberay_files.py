"""KubeRay: a RayJob that trains this candidate, the ConfigMap with its files, and the image that it needs."""

from __future__ import annotations

from typing import Any

import yaml

from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import CONFIG
from raysweep.exports.provenance import comment
from raysweep.exports.ray_files import READ_BY_THE_SCRIPT, SCRIPT, ray_files
from raysweep.exports.text_templates import fill
from raysweep.model_schema import LOOP_KINDS
from raysweep.readable_yaml import ReadableDumper

NAME = "raysweep-train"
FOLDER = "/home/ray/raysweep-train"
HEAD = {"cpu": "2", "memory": "4Gi"}
MEMORY_A_WORKER_GIB = 16
"""Host memory asked for a worker; a sweep does not measure it, so it is a round figure to be changed."""


def kuberay_files(answer: Answer) -> dict[str, str]:
    """`rayjob.yaml` for `kubectl apply`, and a Dockerfile for its image."""
    return {
        "rayjob.yaml": comment(answer)
        + yaml.dump_all([config_map(answer), ray_job(answer)], Dumper=ReadableDumper, sort_keys=False),
        "Dockerfile": fill("Dockerfile.j2", answer, packages=_packages(answer)),
        "provenance.yaml": ray_files(answer)[READ_BY_THE_SCRIPT],
    }


def config_map(answer: Answer) -> dict[str, Any]:
    """The files that `train_ray.py` lies beside, as a ConfigMap (core/v1)."""
    files = ray_files(answer)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "labels": _labels(answer)},
        "data": {name: files[name] for name in (SCRIPT, CONFIG, READ_BY_THE_SCRIPT)},
    }


def ray_job(answer: Answer) -> dict[str, Any]:
    """The RayJob (ray.io/v1): a pod a node, which holds that node's workers."""
    # A Trainer or loop of the user's own knows itself how long it trains.
    steps = "" if answer.workload.model["kind"] in LOOP_KINDS else " --steps 1000"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": NAME, "labels": _labels(answer)},
        "spec": {
            "entrypoint": f"python {FOLDER}/{SCRIPT} --address auto{steps}",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            # A training that failed is not started anew from its beginning.
            "backoffLimit": 0,
            "rayClusterSpec": {
                "rayVersion": str(answer.sweep.versions.get("ray", "")),
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod(answer, "ray-head", dict(HEAD)),
                },
                "workerGroupSpecs": [_workers(answer)],
            },
        },
    }


def _workers(answer: Answer) -> dict[str, Any]:
    placement, asked = answer.placement, answer.sweep.resources_per_worker
    on_a_pod = placement.workers_per_node
    resources = {
        "cpu": str(max(1, int(asked.get("CPU", 1) * on_a_pod))),
        "memory": f"{MEMORY_A_WORKER_GIB * on_a_pod}Gi",
    }
    if answer.on_cuda:
        resources["nvidia.com/gpu"] = str(on_a_pod)
    return {
        "groupName": "workers",
        "replicas": placement.nodes,
        "minReplicas": placement.nodes,
        "maxReplicas": placement.nodes,
        "rayStartParams": {},
        "template": _pod(answer, "ray-worker", resources),
    }


def _pod(answer: Answer, container: str, resources: dict[str, str]) -> dict[str, Any]:
    return {
        "spec": {
            "containers": [
                {
                    "name": container,
                    "image": image(answer),
                    "env": [{"name": name, "value": value} for name, value in answer.workload.environment.items()],
                    "resources": {"limits": resources, "requests": dict(resources)},
                    "volumeMounts": [
                        {"name": "files", "mountPath": FOLDER},
                        {"name": "shared-memory", "mountPath": "/dev/shm"},
                    ],
                }
            ],
            "volumes": [
                {"name": "files", "configMap": {"name": NAME}},
                # The workers of a pod talk through it; Kubernetes gives 64 MiB where nothing is asked.
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
    }


def image(answer: Answer) -> str:
    """The name under which the Dockerfile beside it is to be built; put your registry before it."""
    return f"{NAME}:{answer.sweep.versions.get('raysweep', 'latest')}"


def _labels(answer: Answer) -> dict[str, str]:
    return {
        "raysweep/candidate": answer.candidate.candidate_id,
        "raysweep/sweep-sha256": answer.sweep.sweep_sha256[:16],
    }


def _packages(answer: Answer) -> list[str]:
    """What the base image of Ray lacks, in the versions that were measured."""
    versions = answer.sweep.versions
    return [f"{name}=={versions[name].partition('+')[0]}" for name in ("torch", "deepspeed") if name in versions]
