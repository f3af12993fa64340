"""A Kubernetes API server with a KubeRay operator, both without Kubernetes; what becomes of a job is told in verbs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from fake_http import Answer, FakeService

RAY_JOBS = "/apis/ray.io/v1/namespaces/default/rayjobs"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


class FakeKubernetes(FakeService):
    """Keeps RayJobs and ConfigMaps of the namespace `default`."""

    def __init__(self) -> None:
        self.ray_jobs: dict[str, dict[str, Any]] = {}
        self.config_maps: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.refuses_config_maps = False
        super().__init__()

    def kubeconfig(self, folder: Path) -> Path:
        """A file by which a client finds this server."""
        path = folder / "kubeconfig"
        plain = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.address}}],
            "users": [{"name": "fake", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(plain))
        return path

    def runs(self, job_id: str) -> None:
        """The cluster is up and the driver started."""
        self.says(job_id, "RUNNING", "Running")

    def prints(self, job_id: str, text: str) -> None:
        """The driver prints, and the pod that follows it."""
        self.logs[job_id] = self.logs.get(job_id, "") + text

    def ends(self, job_id: str, exit_code: int) -> None:
        """The driver ends, and the operator has seen it."""
        if exit_code:
            message = f"Job entrypoint command failed with exit code {exit_code}, last available logs ...: x"
            self.says(job_id, "FAILED", "Failed", reason="AppFailed", message=message)
        else:
            self.says(job_id, "SUCCEEDED", "Complete", message="Job finished successfully.")

    def says(self, job_id: str, job: str, deployment: str, **more: str) -> None:
        """Both states, as they stand in the status."""
        self.ray_jobs[job_id]["status"] = {"jobStatus": job, "jobDeploymentStatus": deployment, **more}

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes, headers: dict[str, str]
    ) -> Answer:
        """As an API server answers."""
        if path.startswith(RAY_JOBS):
            return self._on_ray_jobs(method, path.removeprefix(RAY_JOBS).strip("/"), body, headers)
        if path.startswith(CONFIG_MAPS):
            if self.refuses_config_maps:
                return _refusal(403, 'configmaps is forbidden: User "me" cannot create resource "configmaps"')
            return self._on_config_maps(method, path.removeprefix(CONFIG_MAPS).strip("/"), body)
        if path == PODS:
            (selector,) = query["labelSelector"]
            name = selector.removeprefix("job-name=")
            pods = (
                [{"metadata": {"name": f"{name}-abcde"}, "status": {"phase": "Running"}}] if name in self.logs else []
            )
            return 200, {"kind": "PodList", "apiVersion": "v1", "items": pods}
        if path.startswith(PODS) and path.endswith("-abcde/log"):
            return 200, self.logs[path.split("/")[-2].removesuffix("-abcde")]
        return _refusal(404, f"{method} {path}")

    def _on_ray_jobs(self, method: str, name: str, body: bytes, headers: dict[str, str]) -> Answer:
        if method == "POST":
            return _create(self.ray_jobs, json.loads(body), kind="rayjobs.ray.io")
        if not name:
            return 200, {"items": list(self.ray_jobs.values())}
        if name not in self.ray_jobs:
            return _refusal(404, f'rayjobs.ray.io "{name}" not found')
        if method == "PATCH":
            if headers["Content-Type"] != "application/merge-patch+json":
                return _refusal(415, "the body of the request was in an unknown format")
            _merge(self.ray_jobs[name], json.loads(body))
            if self.ray_jobs[name]["spec"].get("suspend"):
                self.says(name, "", "Suspended")
        if method == "DELETE":
            return 200, self.ray_jobs.pop(name)
        return 200, self.ray_jobs[name]

    def _on_config_maps(self, method: str, name: str, body: bytes) -> Answer:
        if method == "PUT":
            self.config_maps[name] = json.loads(body)
            return 200, self.config_maps[name]
        return _create(self.config_maps, json.loads(body), kind="configmaps")


def _create(known: dict[str, dict[str, Any]], manifest: dict[str, Any], *, kind: str) -> Answer:
    name = manifest["metadata"]["name"]
    if name in known:
        return _refusal(409, f'{kind} "{name}" already exists')
    manifest["metadata"]["uid"] = f"uid-of-{name}"
    known[name] = manifest
    return 201, manifest


def _merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def _refusal(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
