"""KubeRay's two words for a job, Ray's and the operator's, as one of ours: one table, and where they disagree."""

from __future__ import annotations

from raysweep.submit.job import JobState

JOB_WORDS = ("", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED")
"""`status.jobStatus`: what Ray says of the job; empty before it was asked."""

_LETTERS = {
    "P": JobState.PENDING,
    "R": JobState.RUNNING,
    "S": JobState.SUCCEEDED,
    "F": JobState.FAILED,
    "X": JobState.STOPPED,
}
TABLE = {
    # jobStatus:        ""  PEND RUN SUCC FAIL STOP
    "":                 "P   P   R!  R!   F!   X!",
    "Initializing":     "P   P   R!  R!   F!   X!",
    "Waiting":          "P   P   R!  R!   F!   X!",
    "Running":          "P   P   R   R!   F!   X!",
    "Complete":         "F!  F!  F!  S    F!   X",
    "Failed":           "F   F!  F!  F!   F    X!",
    "ValidationFailed": "F   F!  F!  F!   F!   F!",
    "Suspending":       "P   P   P!  P!   F!   X",
    "Suspended":        "P   P   P!  P!   F!   X",
    "Retrying":         "P   P   P   P!   P    P",
}  # fmt: skip
"""`status.jobDeploymentStatus`, what the operator says -> a column for each of `JOB_WORDS`; ! where both cannot hold.

A job has succeeded when both say so. One that either says to have failed has failed: the operator may have given up
while Ray's word is from before, and Ray may know of a failure that the operator has not seen.
"""


def job_state(job: str, deployment: str) -> tuple[JobState, str]:
    """Our word, and the conflict of the two where there is one."""
    if deployment not in TABLE or job not in JOB_WORDS:
        return JobState.UNKNOWN, ""
    cell = TABLE[deployment].split()[JOB_WORDS.index(job)]
    conflict = f"Ray says {job or 'nothing'}, the operator says {deployment or 'nothing'}" if "!" in cell else ""
    return _LETTERS[cell[0]], conflict
