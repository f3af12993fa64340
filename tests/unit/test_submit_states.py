"""States of each place in our words: every one that the place has."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import write_sweep
from fake_slurm import FakeSlurm
from ray.job_submission import JobStatus as RayJobStatus

from raysweep.submit import ray_jobs, slurm_states
from raysweep.submit.job import JobRequest, JobState, JobStatus, base_and_attempt
from raysweep.submit.kuberay_states import JOB_WORDS, TABLE, job_state
from raysweep.submit.places import make_submitter
from raysweep.submit.sending import follow
from raysweep.sweep_file import load_sweep, submit_section

SLURM_WORDS = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "CONFIGURING",
    "COMPLETING",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "RUNNING",
    "RESV_DEL_HOLD",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "REQUEUED",
    "RESIZING",
    "REVOKED",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
    "TIMEOUT",
    "LAUNCH_FAILED",
    "POWER_UP_NODE",
    "RECONFIG_FAIL",
    "UPDATE_DB",
    "EXPEDITING",
}
"""JOB STATE CODES of squeue(1), of 22.05 and of 25.05 together."""
OPERATOR_WORDS = ("", "Initializing", "Running", "Complete", "Failed", "ValidationFailed", "Suspending", "Suspended")
OPERATOR_WORDS += ("Retrying", "Waiting")
"""`JobDeploymentStatus` of ray-operator/apis/ray/v1/rayjob_types.go, KubeRay 1.5."""


def test_every_state_of_ray_jobs_has_a_word() -> None:
    assert set(ray_jobs.STATES) == {status.value for status in RayJobStatus}
    assert {word for word, state in ray_jobs.STATES.items() if state.is_finished} == {
        status.value for status in RayJobStatus if status.is_terminal()
    }


def test_every_state_of_slurm_has_a_word() -> None:
    assert set(slurm_states.STATES) == SLURM_WORDS


def test_only_what_has_completed_has_succeeded() -> None:
    assert [word for word, state in slurm_states.STATES.items() if state is JobState.SUCCEEDED] == ["COMPLETED"]
    assert slurm_states.job_state("CANCELLED by 1000") is JobState.STOPPED
    assert slurm_states.job_state("OUT_OF_ME+") is JobState.UNKNOWN
    assert slurm_states.job_state("") is slurm_states.job_state("NEW_IN_26") is JobState.UNKNOWN


def test_both_words_of_kuberay_have_one_of_ours_in_every_pair() -> None:
    assert set(TABLE) == set(OPERATOR_WORDS)
    pairs = {(job, operator): job_state(job, operator) for job in JOB_WORDS for operator in OPERATOR_WORDS}
    succeeded = [pair for pair, (state, _) in pairs.items() if state is JobState.SUCCEEDED]
    assert succeeded == [("SUCCEEDED", "Complete")]
    given_up = [state for (_, operator), (state, _) in pairs.items() if operator == "Failed"]
    assert set(given_up) == {JobState.FAILED, JobState.STOPPED}
    failed = {state for (job, operator), (state, _) in pairs.items() if job == "FAILED" and operator != "Retrying"}
    assert failed == {JobState.FAILED}


@pytest.mark.parametrize(
    ("job", "operator", "state"),
    [
        ("RUNNING", "Failed", JobState.FAILED),
        ("FAILED", "Running", JobState.FAILED),
        ("SUCCEEDED", "Running", JobState.RUNNING),
    ],
)
def test_a_conflict_is_shown_as_one_b67(job: str, operator: str, state: JobState) -> None:
    ours, conflict = job_state(job, operator)
    assert ours is state
    line = JobStatus(job_id="x", state=ours, words="", conflict=conflict).line()
    assert f"CONFLICT: Ray says {job}, the operator says {operator}" in line
    assert job_state("RUNNING", "Running") == (JobState.RUNNING, "")


def test_words_of_later_versions_are_unknown() -> None:
    assert job_state("PAUSED", "Running") == job_state("RUNNING", "Paused") == (JobState.UNKNOWN, "")


def test_unknown_is_no_success() -> None:
    assert JobStatus(job_id="x", state=JobState.UNKNOWN, words="").code == 1


@pytest.mark.parametrize(
    ("name", "base"), [("Quick Start!", "quick-start"), ("7b", "sweep-7b"), ("ü", "sweep"), ("a" * 60, "a" * 28)]
)
def test_names_are_names_everywhere(tmp_path: Path, name: str, base: str) -> None:
    request = JobRequest(sweep=load_sweep(write_sweep(tmp_path, name=name)), attempt=12)
    assert request.base_id == f"{base}-{request.sweep.sweep_sha256[:12]}"
    assert base_and_attempt(request.job_id) == (request.base_id, 12)
    assert len(request.job_id) <= 47


def test_where_a_sweep_is_sent_is_no_part_of_its_name(tmp_path: Path) -> None:
    names = {
        JobRequest(sweep=load_sweep(write_sweep(tmp_path, submit=submit))).job_id
        for submit in ({}, {"to": "ray"}, {"slurm": {"nodes": 4}})
    }
    assert len(names) == 1


def test_slurm_that_has_forgotten_a_job_does_not_make_it_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm.bin}:/usr/bin:/bin")
    request = JobRequest(sweep=load_sweep(write_sweep(tmp_path)))
    submitter = make_submitter("slurm", submit_section({}))
    submitter.submit(request)
    slurm.forgets(request.job_id)
    now_s = iter(range(0, 10_000, 100))
    status = follow(
        submitter, request.job_id, write=print, note=print, clock=lambda: float(next(now_s)), sleep=lambda _: None
    )
    assert (status.state, status.code) == (JobState.UNKNOWN, 1)
    slurm.ends(request.job_id, 3)
    assert submitter.status(request.job_id).code == 3


@pytest.mark.parametrize(
    ("state", "code", "ours", "exit_code"),
    [
        ("TIMEOUT", "0:15", JobState.FAILED, 143),
        ("NODE_FAIL", "0:0", JobState.FAILED, 1),
        ("PREEMPTED", "0:0", JobState.FAILED, 1),
        ("FAILED", "130:0", JobState.FAILED, 130),
        ("SUSPENDED", "0:0", JobState.PENDING, 0),
    ],
)
def test_codes_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: str, ours: JobState, exit_code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm.bin}:/usr/bin:/bin")
    request = JobRequest(sweep=load_sweep(write_sweep(tmp_path)))
    submitter = make_submitter("slurm", submit_section({}))
    submitter.submit(request)
    slurm.says(request.job_id, state, code=code)
    status = submitter.status(request.job_id)
    assert (status.state, status.code) == (ours, exit_code)
