"""Renders the batch script of a sweep under Slurm, and the script that runs the sweep on the first node."""

from __future__ import annotations

import math
import shlex
import sys
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysweep.results.paths import ResultsPaths, local_folder
from raysweep.submit.driver_command import driver_command, in_shell, sweep_inside
from raysweep.submit.job import JobRequest
from raysweep.submit_schema import SlurmSubmit
from raysweep.sweep_file import Sweep

SCRIPT, DRIVER = "job.sbatch", "driver.sh"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("raysweep.submit"),
        undefined=StrictUndefined,
        autoescape=False,  # shell, not HTML: what is not a number goes through `sh`
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sh"] = shlex.quote
    return environment


def render_scripts(request: JobRequest, options: SlurmSubmit, *, working_dir: Path, folder: Path) -> dict[str, str]:
    """Both scripts by file name.

    Args:
        request: the sweep.
        options: of the sweep file's section, or given.
        working_dir: where the sweep runs, on a file system that the nodes see.
        folder: the job's own folder there.

    Raises:
        ConfigError: when the sweep file lies outside the working directory.
    """
    sweep = request.sweep
    cpus, gpus = resources_per_node(sweep, options)
    in_container = bool(options.container or options.prefix)
    python = options.python or ("python" if in_container else sys.executable)
    environment = _environment()
    script = environment.get_template(f"{SCRIPT}.j2").render(
        job_id=request.job_id,
        options=options,
        named=_named(options),
        cpus=cpus,
        gpus=gpus,
        folder=str(folder),
        working_dir=str(working_dir),
        # `ray symmetric-run` calls `ray` by name.
        bin=str(Path(python).parent) if "/" in python else "",
        lock=shlex.quote(str(ResultsPaths(local_folder(sweep.results)).lock)),
        container=_container(options, working_dir),
        prefix="".join(f"{shlex.quote(word)} " for word in options.prefix),
    )
    command = driver_command(
        python=[python], sweep=sweep_inside(sweep, working_dir), address='"$address"', **in_shell(sweep.results)
    )
    driver = environment.get_template(f"{DRIVER}.j2").render(
        command=command, folder=str(folder), working_dir=str(working_dir)
    )
    return {SCRIPT: script, DRIVER: driver}


def resources_per_node(sweep: Sweep, options: SlurmSubmit) -> tuple[int, int]:
    """CPUs and GPUs of a node: what is given, else what the workers of the fullest node ask for."""
    workers = math.ceil(sweep.file.workers.count / options.nodes)
    asked = sweep.file.workers.resources_per_worker
    cpus = options.cpus_per_node or max(1, math.ceil(workers * asked.get("CPU", 1)))
    gpus = options.gpus_per_node
    return cpus, math.ceil(workers * asked.get("GPU", 0)) if gpus is None else gpus


def _named(options: SlurmSubmit) -> dict[str, str]:
    """Options that sbatch has under a name, as far as they are given."""
    given = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "time": options.time,
        "mem": options.memory_per_node,
    }
    return {name: value for name, value in given.items() if value is not None}


def _container(options: SlurmSubmit, working_dir: Path) -> str:
    if options.container is None:
        return ""
    mounts = shlex.quote(f"{working_dir}:{working_dir}")
    return f" --container-image={shlex.quote(options.container)} --container-mounts={mounts}"
