"""Sends a sweep to where the devices are: Ray Jobs, Slurm, Kubernetes."""
