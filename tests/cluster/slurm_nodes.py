"""A Slurm of several nodes on this machine, with everything of it in one folder."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import local_cluster

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
CONF = """\
ClusterName=raysweep
SlurmctldHost={head}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=10
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, kw_only=True)
class SlurmNodes:
    """A running Slurm; its folder is what the nodes share."""

    folder: Path
    nodes: tuple[local_cluster.Node, ...]

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """What a command of Slurm's prints."""
        return subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True, timeout=60
        ).stdout


def check_able() -> None:
    """Whether Slurm is installed, and nodes can be made.

    Raises:
        CannotBuild: with what lacks.
    """
    local_cluster.check_able("slurm")
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        raise local_cluster.CannotBuild(f"no Slurm here: {', '.join(lacking)} (packages slurm-wlm and munge)")


@contextmanager
def running(count: int) -> Iterator[SlurmNodes]:
    """A Slurm of so many nodes of one CPU, each with name spaces of its own, for the length of a block."""
    folder = Path(tempfile.mkdtemp(prefix="raysweep-slurm-", dir="/var/tmp"))
    cluster = local_cluster.up("slurm", count)
    try:
        slurm = SlurmNodes(folder=folder, nodes=cluster.nodes)
        _start(slurm)
        yield slurm
    finally:
        local_cluster.down("slurm")  # with all daemons, which live in the nodes
        shutil.rmtree(folder, ignore_errors=True)


def _start(slurm: SlurmNodes) -> None:
    names = [f"slurm-{index}" for index in range(len(slurm.nodes))]
    lines = [
        f"NodeName={name} NodeHostname={name} NodeAddr={node.address} CPUs=1 State=UNKNOWN"
        for name, node in zip(names, slurm.nodes, strict=True)
    ]
    conf = CONF.format(head=names[0], address=slurm.nodes[0].address, folder=slurm.folder, nodes="\n".join(lines))
    (slurm.folder / "slurm.conf").write_text(conf)
    (slurm.folder / "state").mkdir()
    key = slurm.folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
    named = [f"--{option}={slurm.folder / name}" for option, name in {**files, "seed-file": "munged.seed"}.items()]
    slurm.nodes[0].run("munged", "--force", *named)
    slurm.nodes[0].run("slurmctld", environment=slurm.environment)
    for name, node in zip(names, slurm.nodes, strict=True):
        node.run("slurmd", "-N", name, environment=slurm.environment)
    limit_s = time.monotonic() + 60
    while not _are_idle(slurm):
        if time.monotonic() > limit_s:
            logs = [path.read_text()[-1500:] for path in slurm.folder.glob("*.log")]
            raise local_cluster.CannotBuild("Slurm's nodes do not come up: " + "\n".join(logs))
        time.sleep(0.5)


def _are_idle(slurm: SlurmNodes) -> bool:
    try:
        return slurm.ask("sinfo", "--noheader", "--format=%T").split() == ["idle"]
    except subprocess.CalledProcessError:  # nobody answers yet
        return False
