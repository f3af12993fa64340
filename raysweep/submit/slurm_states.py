"""Slurm's words for a job's state, in ours: one table."""

from __future__ import annotations

from raysweep.submit.job import JobState

STATES = {
    "BOOT_FAIL": JobState.FAILED,
    "CANCELLED": JobState.STOPPED,
    "COMPLETED": JobState.SUCCEEDED,
    "COMPLETING": JobState.RUNNING,
    "CONFIGURING": JobState.PENDING,
    "DEADLINE": JobState.FAILED,
    "EXPEDITING": JobState.PENDING,
    "FAILED": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "PENDING": JobState.PENDING,
    "POWER_UP_NODE": JobState.PENDING,
    "PREEMPTED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESIZING": JobState.RUNNING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "REVOKED": JobState.STOPPED,
    "RUNNING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "SPECIAL_EXIT": JobState.PENDING,
    "STAGE_OUT": JobState.RUNNING,
    "STOPPED": JobState.PENDING,
    "SUSPENDED": JobState.PENDING,
    "TIMEOUT": JobState.FAILED,
    "UPDATE_DB": JobState.RUNNING,
}
"""Every state and flag of `squeue(1)` and `sacct(1)`. STOPPED is SIGSTOP there: the job holds its nodes and waits."""


def job_state(word: str) -> JobState:
    """Our word; sacct adds who cancelled (`CANCELLED by 1000`) and a `+` where it cuts a word."""
    return STATES.get(word.split()[0].rstrip("+"), JobState.UNKNOWN) if word.strip() else JobState.UNKNOWN
