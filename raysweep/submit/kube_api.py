"""The calls to a Kubernetes API server that RayJobs need, with its refusals in our errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import kubernetes
from kubernetes.client import ApiException
from kubernetes.config import ConfigException

from raysweep.errors import PreflightError
from raysweep.submit.job import AlreadyThere

GROUP, VERSION, PLURAL = "ray.io", "v1", "rayjobs"
NOT_FOUND, CONFLICT = 404, 409
TIMEOUT_S = 30


class KubeApi:
    """One namespace of one cluster, by the user's kubeconfig or, inside a pod, by its service account."""

    def __init__(self, *, context: str | None, namespace: str, where: str) -> None:
        self._namespace = namespace
        self._where = where
        try:
            _load_config(context)
        except (ConfigException, OSError) as error:
            raise PreflightError(message=f"{where}: no access to a cluster: {error}") from None
        self._core = kubernetes.client.CoreV1Api()
        self._custom = kubernetes.client.CustomObjectsApi()

    def create_ray_job(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The RayJob as the server has it.

        Raises:
            AlreadyThere: when there is one of this name.
        """
        created: dict[str, Any] = self._ask(
            lambda: self._custom.create_namespaced_custom_object(*self._where_jobs, manifest, **_patience()),
            taken=manifest["metadata"]["name"],
        )
        return created

    def create_config_map(self, manifest: dict[str, Any]) -> None:
        """Create it, or put it in the place of one of this name that a deleted job left."""
        name = manifest["metadata"]["name"]
        try:
            self._ask(
                lambda: self._core.create_namespaced_config_map(self._namespace, manifest, **_patience()), taken=name
            )
        except AlreadyThere:
            self._ask(lambda: self._core.replace_namespaced_config_map(name, self._namespace, manifest, **_patience()))

    def ray_jobs(self) -> list[dict[str, Any]]:
        """All RayJobs of the namespace."""
        listed = self._ask(lambda: self._custom.list_namespaced_custom_object(*self._where_jobs, **_patience()))
        return list(listed["items"])

    def ray_job(self, name: str) -> dict[str, Any] | None:
        """The RayJob of a name; None where there is none."""
        found: dict[str, Any] | None = self._ask(
            lambda: self._custom.get_namespaced_custom_object(*self._where_jobs, name, **_patience()), or_none=True
        )
        return found

    def patch_ray_job(self, name: str, changes: dict[str, Any]) -> None:
        """Change single values of it."""
        # Custom resources take no strategic merge, and clients differ in what they would send.
        kind = "application/merge-patch+json"
        self._ask(
            lambda: self._custom.patch_namespaced_custom_object(
                *self._where_jobs, name, changes, _content_type=kind, **_patience()
            )
        )

    def delete_ray_job(self, name: str) -> None:
        """Delete it with all that it owns."""
        self._ask(
            lambda: self._custom.delete_namespaced_custom_object(*self._where_jobs, name, **_patience()), or_none=True
        )

    def submitter_log(self, name: str) -> str:
        """What the pods of the Job print that the operator makes to submit a RayJob; it bears the RayJob's name."""
        pods = self._ask(
            lambda: self._core.list_namespaced_pod(self._namespace, label_selector=f"job-name={name}", **_patience())
        ).items
        logs = [self._pod_log(pod.metadata.name) for pod in pods if pod.status.phase != "Pending"]
        return "".join(logs)

    def _pod_log(self, pod: str) -> str:
        response = self._ask(
            lambda: self._core.read_namespaced_pod_log(pod, self._namespace, _preload_content=False, **_patience()),
            or_none=True,
        )
        return "" if response is None else response.data.decode("utf-8", "replace")

    @property
    def _where_jobs(self) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self._namespace, PLURAL

    def _ask(self, call: Callable[[], Any], *, taken: str = "", or_none: bool = False) -> Any:
        """The server's answer.

        Raises:
            AlreadyThere: when it has an object of the name `taken`.
            PreflightError: with the server's own words.
        """
        try:
            return call()
        except ApiException as error:
            if or_none and error.status == NOT_FOUND:
                return None
            if taken and error.status == CONFLICT:
                raise AlreadyThere(taken) from None
            raise PreflightError(
                message=f"{self._where}: the API server answers {error.status} {error.reason}: {_said(error)}"
            ) from None
        except (OSError, kubernetes.client.exceptions.OpenApiException) as error:
            raise PreflightError(message=f"{self._where}: {error}") from None
        except Exception as error:
            # urllib3 is the client's own affair: its errors have no common base with ours.
            if type(error).__module__.partition(".")[0] != "urllib3":
                raise
            raise PreflightError(message=f"{self._where}: {error}") from None


def _load_config(context: str | None) -> None:
    try:
        # The client reads the variable once, when it is imported.
        kubernetes.config.load_kube_config(context=context, config_file=os.environ.get("KUBECONFIG"))
    except ConfigException as no_file:
        try:
            kubernetes.config.load_incluster_config()
        except ConfigException:
            raise no_file from None


def _said(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (KeyError, TypeError, ValueError):
        return str(error.body)


def _patience() -> dict[str, int]:
    return {"_request_timeout": TIMEOUT_S}
