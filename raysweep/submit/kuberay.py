"""KubeRay: a sweep as a RayJob, which brings its own Ray cluster up and takes it down."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from raysweep.clock import utc_now
from raysweep.errors import PreflightError
from raysweep.readable_yaml import ReadableDumper
from raysweep.results.store import fetch_folder
from raysweep.submit.driver_command import is_uri
from raysweep.submit.job import JobRequest, JobState, JobStatus, base_and_attempt, no_such_job
from raysweep.submit.kuberay_manifest import ANNOTATION_RESULTS, ANNOTATION_STOPPED, render_manifests
from raysweep.submit.kuberay_states import job_state
from raysweep.submit_schema import KubeRaySubmit

if TYPE_CHECKING:
    from raysweep.submit.kube_api import KubeApi

KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_EXIT_CODE = re.compile(r"failed with exit code ([0-9]+)")
"""In the message that the operator takes over from Ray's record of the job."""


class KubeRay:
    """The Submitter for Kubernetes with the KubeRay operator."""

    def __init__(self, options: KubeRaySubmit) -> None:
        self._options = options

    @property
    def where(self) -> str:
        """The namespace."""
        context = f" of {self._options.context}" if self._options.context else ""
        return f"kuberay, namespace {self._options.namespace}{context}"

    def render(self, request: JobRequest) -> str:
        """Both manifests, as `kubectl apply -f` takes them."""
        return yaml.dump_all(render_manifests(request, self._options), Dumper=ReadableDumper, sort_keys=False)

    def submit(self, request: JobRequest) -> None:
        """Create the ConfigMap and the RayJob; the first goes with the second when that is deleted."""
        config_map, ray_job = render_manifests(request, self._options)
        created = self._api.create_ray_job(ray_job)
        owner = {
            "apiVersion": ray_job["apiVersion"],
            "kind": ray_job["kind"],
            "name": request.job_id,
            "uid": created["metadata"]["uid"],
        }
        config_map["metadata"]["ownerReferences"] = [owner]
        try:
            self._api.create_config_map(config_map)
        except PreflightError:
            self._api.delete_ray_job(request.job_id)
            raise

    def jobs(self) -> Sequence[JobStatus]:
        """RayJobs of ours in the namespace."""
        found = [_status(each) for each in self._api.ray_jobs() if base_and_attempt(each["metadata"]["name"])]
        return sorted(found, key=lambda status: status.job_id)

    def status(self, job_id: str) -> JobStatus:
        """From what Ray says of the job and what the operator says, compared."""
        return _status(self._ray_job(job_id))

    def logs(self, job_id: str) -> str:
        """What the pod prints that submits the job and follows it; empty before it runs and once it is gone."""
        self._ray_job(job_id)
        return self._api.submitter_log(job_id)

    def stop(self, job_id: str) -> None:
        """Suspend it, which ends its pods; under Kueue, which would start it again, delete it."""
        ray_job = self._ray_job(job_id)
        if _status(ray_job).state.is_finished:
            return
        if KUEUE_LABEL in ray_job["metadata"].get("labels", {}):
            self._api.delete_ray_job(job_id)
            return
        stopped = {"metadata": {"annotations": {ANNOTATION_STOPPED: utc_now()}}, "spec": {"suspend": True}}
        self._api.patch_ray_job(job_id, stopped)

    def fetch(self, job_id: str, folder: Path) -> str:
        """From the object store; what is in a volume is fetched by whoever may mount it."""
        results: str = self._ray_job(job_id)["metadata"].get("annotations", {}).get(ANNOTATION_RESULTS, "")
        if not is_uri(results):
            raise PreflightError(
                message=f"the results are in {results} of the volume that {job_id} mounts there "
                f"(submit.kuberay.results_claim); copy them with kubectl from a pod that mounts it. Results at a URI "
                "(`results: s3://...`) are fetched from anywhere"
            )
        fetch_folder(results, folder)
        return results

    def _ray_job(self, job_id: str) -> dict[str, Any]:
        ray_job = self._api.ray_job(job_id)
        if ray_job is None:
            raise no_such_job(job_id, self.where, [each.job_id for each in self.jobs()])
        return ray_job

    @cached_property
    def _api(self) -> KubeApi:
        try:
            # Loaded on demand: a dry run needs no client.
            from raysweep.submit.kube_api import KubeApi
        except ImportError as error:
            raise PreflightError(
                message=f"the Kubernetes client is not installed ({error}); pip install 'raysweep[kubernetes]'"
            ) from None
        return KubeApi(context=self._options.context, namespace=self._options.namespace, where=self.where)


def _status(ray_job: Mapping[str, Any]) -> JobStatus:
    status = ray_job.get("status") or {}
    job, deployment = status.get("jobStatus", ""), status.get("jobDeploymentStatus", "")
    state, conflict = job_state(job, deployment)
    if ANNOTATION_STOPPED in ray_job["metadata"].get("annotations", {}) and not state.is_finished:
        state, conflict = JobState.STOPPED, ""  # we suspended it; the operator calls that a pause
    message = str(status.get("message", ""))
    code = _EXIT_CODE.search(message)
    return JobStatus(
        job_id=ray_job["metadata"]["name"],
        state=state,
        words=f"jobStatus: {job or '-'}, jobDeploymentStatus: {deployment or '-'}",
        exit_code=int(code[1]) if code and state is JobState.FAILED else None,
        # With an exit code the message goes on with the end of the log.
        reason=" ".join(filter(None, [status.get("reason", ""), "" if code else message])),
        conflict=conflict,
    )
