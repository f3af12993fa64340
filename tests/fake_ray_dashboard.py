"""A Ray dashboard without Ray: it speaks the Jobs API, and what becomes of a job is told in verbs."""

from __future__ import annotations

import json
from typing import Any

from fake_http import Answer, FakeService


class FakeRayDashboard(FakeService):
    """Takes packages and jobs, and runs nothing."""

    def __init__(self) -> None:
        self.packages: dict[str, bytes] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        super().__init__()

    def runs(self, job_id: str) -> None:
        """The driver starts."""
        self.details[job_id]["status"] = "RUNNING"

    def prints(self, job_id: str, text: str) -> None:
        """The driver prints."""
        self.logs[job_id] += text

    def ends(self, job_id: str, exit_code: int) -> None:
        """The driver ends."""
        status = "FAILED" if exit_code else "SUCCEEDED"
        message = f"Job entrypoint command failed with exit code {exit_code}, last available logs ...: "
        self.details[job_id] |= {"status": status, "driver_exit_code": exit_code, "message": message}

    def cannot_set_up(self, job_id: str, message: str) -> None:
        """The runtime environment fails, so that no driver starts."""
        self.details[job_id] |= {
            "status": "FAILED",
            "error_type": "RUNTIME_ENV_SETUP_FAILURE",
            "message": message,
        }

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes, headers: dict[str, str]
    ) -> Answer:
        """As ray/dashboard/modules/job/job_head.py answers."""
        match [method, *path.strip("/").split("/")[1:]]:
            case ["GET", "version"]:
                return 200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "", "session_name": "fake"}
            case ["GET", "packages", _, name]:
                return (200, "") if name in self.packages else (404, f"Package {name} does not exist")
            case ["PUT", "packages", _, name]:
                self.packages[name] = body
                return 200, ""
            case ["POST", "jobs"]:
                return self._submit(json.loads(body))
            case ["GET", "jobs"]:
                return 200, list(self.details.values())
            case [_, "jobs", job_id, *_] if job_id not in self.details:
                return 404, f"Job {job_id} does not exist"
            case ["GET", "jobs", job_id]:
                return 200, self.details[job_id]
            case ["GET", "jobs", job_id, "logs"]:
                return 200, {"logs": self.logs[job_id]}
            case ["POST", "jobs", job_id, "stop"]:
                self.details[job_id]["status"] = "STOPPED"
                return 200, {"stopped": True}
        return 405, f"{method} {path}"

    def _submit(self, request: dict[str, Any]) -> Answer:
        job_id = request["submission_id"]
        if job_id in self.details:
            return 500, f"ValueError: Job with submission_id {job_id} already exists. Please use a different one."
        self.details[job_id] = {
            **{key: request.get(key) for key in ("submission_id", "entrypoint", "metadata", "runtime_env")},
            "type": "SUBMISSION",
            "status": "PENDING",
            "message": "Job has not started yet.",
        }
        self.logs[job_id] = ""
        return 200, {"submission_id": job_id, "job_id": job_id}
