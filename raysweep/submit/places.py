"""Gives the Submitter of a place, and loads no other."""

from __future__ import annotations

from raysweep.submit.job import Submitter
from raysweep.submit_schema import SubmitSection


def make_submitter(place: str, section: SubmitSection) -> Submitter:
    """The Submitter of `ray`, `slurm` or `kuberay`, with the options of its part of the section."""
    if place == "slurm":
        from raysweep.submit.slurm import Slurm

        return Slurm(section.slurm)
    if place == "kuberay":
        from raysweep.submit.kuberay import KubeRay

        return KubeRay(section.kuberay)
    from raysweep.submit.ray_jobs import RayJobs

    return RayJobs(section.ray)
