"""A real Slurm of two nodes: a sweep over both that is stopped, goes on in its next allocation, or is cancelled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import local_cluster
import pytest
import slurm_nodes
import yaml
from jobs import LONG, Client, launches, wait_for_code, wait_until
from on_head import ROOT
from seeds import OPERATORS, built_operators

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

OVER_BOTH = {"count": 2, "resources_per_worker": {"CPU": 1}, "placement": "STRICT_SPREAD"}


@pytest.fixture(scope="module")
def slurm() -> Iterator[slurm_nodes.SlurmNodes]:
    """Two nodes of one CPU."""
    try:
        slurm_nodes.check_able()
    except local_cluster.CannotBuild as error:
        pytest.skip(str(error))
    with slurm_nodes.running(2) as running:
        yield running


@pytest.fixture(scope="module")
def client(slurm: slurm_nodes.SlurmNodes) -> Client:
    """A user whose home and project every node sees, as under Slurm."""
    project = slurm.folder / "home" / "my project, it's"
    project.mkdir(parents=True)
    for source in built_operators().values():
        shutil.copytree(source, slurm.folder / "home" / OPERATORS, symlinks=True)
    environment = {**slurm.environment, "HOME": str(slurm.folder / "home"), "OMP_NUM_THREADS": "1"}
    place = ("--to", "slurm", "--option", "nodes=2", "--option", "time=00:30:00")
    return Client(project, *place, environment=environment)


def _sent(client: Client, path: str) -> tuple[str, str]:
    """Our name of a job that is sent now, and Slurm's number."""
    code, output = client.run("submit", path)
    assert code == 0 and output.startswith("submitted "), output
    job_id = output.split()[1]
    return job_id, (client.folder / "raysweep-jobs" / job_id / "slurm_id").read_text().strip()


def _log(client: Client, job_id: str) -> str:
    return client.run("jobs", "logs", job_id)[1]


def test_a_sweep_that_is_stopped_writes_its_results(client: Client, slurm: slurm_nodes.SlurmNodes) -> None:
    path = client.write_sweep("stopped", LONG, workers=OVER_BOTH)
    job_id, number = _sent(client, path)
    results = client.folder / "results" / "stopped"
    wait_until(lambda: launches(results / "journal.jsonl"), said=lambda: _log(client, job_id))
    assert client.run("jobs", "stop", path)[0] == 0
    wait_for_code(client, 130, path)
    assert (results / "best" / "UNCONFIRMED").exists() and (results / "trials.parquet").exists()
    assert "Restarts=0" in slurm.ask("scontrol", "show", "job", number)
    assert client.run("jobs", "list")[1].count("STOPPED") == 1
    code, output = client.run("jobs", "fetch", path, "--output", "fetched stopped")
    assert code == 0 and (client.folder / "fetched stopped" / "trials.parquet").exists(), output


@pytest.mark.slow
def test_a_sweep_goes_on_in_the_next_allocation(client: Client, slurm: slurm_nodes.SlurmNodes) -> None:
    path = client.write_sweep("long", LONG, workers=OVER_BOTH)
    job_id, number = _sent(client, path)
    journal = client.folder / "results" / "long" / "journal.jsonl"
    log = client.folder / "raysweep-jobs" / job_id / "log.txt"

    def wait_for_launches(count: int) -> None:
        wait_until(lambda: len(launches(journal)) >= count, said=lambda: _log(client, job_id))

    # What Slurm sends by itself at --signal, near the time limit.
    wait_for_launches(2)
    slurm.ask("scancel", "--batch", "--signal=USR1", number)
    wait_until(lambda: "is queued again" in log.read_text(), said=lambda: _log(client, job_id))
    wait_until(lambda: "Restarts=1" in slurm.ask("scontrol", "show", "job", number), said=lambda: _log(client, job_id))
    assert (client.folder / "results" / "long" / "best" / "UNCONFIRMED").exists()  # it was let write its results
    assert client.run("jobs", "status", path)[0] == 0
    code, output = client.run("jobs", "logs", path, "--follow")
    assert code == 5 and "Winner, NOT confirmed" in output, output
    assert output.splitlines()[-1].startswith(f"FAILED {job_id} (slurm {number}: FAILED, exit code 5)"), output
    assert "Restarts=1" in slurm.ask("scontrol", "show", "job", number)
    rows = launches(journal)
    measured = [row["candidate_id"] for row in rows if row["status"] == "COMPLETED"]
    assert len(set(measured)) == len(measured) == 9
    assert all(len(set(row["nodes"])) == 2 for row in rows if row["status"] == "COMPLETED")
    assert client.run("submit", path)[0] == client.run("jobs", "status", job_id)[0] == 5
    code, output = client.run("jobs", "fetch", path, "--output", "fetched")
    assert code == 0 and (client.folder / "fetched" / "best" / "ds_config.json").exists(), output


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quickstart_is_queued_again_cancelled_and_confirmed(client: Client, slurm: slurm_nodes.SlurmNodes) -> None:
    plain = yaml.safe_load((ROOT / "search_spaces" / "quickstart.yaml").read_text())
    path = client.write_sweep("quickstart", plain, workers=OVER_BOTH)
    job_id, number = _sent(client, path)
    journal = client.folder / "results" / "quickstart" / "journal.jsonl"

    def wait_for_launches(count: int) -> None:
        wait_until(lambda: len(launches(journal)) >= count, said=lambda: _log(client, job_id))

    wait_for_launches(2)
    slurm.ask("scontrol", "requeue", number)  # what an administrator does, or Slurm when a node is lost
    wait_for_launches(5)
    slurm.ask("scancel", number)
    wait_for_code(client, 130, path)
    code, output = client.run("submit", path, "--again", "--follow", timeout_s=900)
    assert code == 0 and "Winner, confirmed" in output, output
    searched = [row["candidate_id"] for row in launches(journal) if row["phase"] == "search"]
    measured = [row["candidate_id"] for row in launches(journal) if row["status"] == "COMPLETED" and not row["round"]]
    assert len(set(searched)) == 12 and len(set(measured)) == len(measured)
    code, output = client.run("jobs", "fetch", path, "--output", "fetched quickstart")
    assert code == 0 and (client.folder / "fetched quickstart" / "best" / "ds_config.json").exists(), output


def test_a_sweep_that_waits_is_cancelled(client: Client, slurm: slurm_nodes.SlurmNodes) -> None:
    path = client.write_sweep("waiting", LONG, workers=OVER_BOTH)
    code, output = client.run("submit", path, "--option", "extra=[--hold]")
    assert code == 0, output
    assert "JobHeldUser" in client.run("jobs", "status", path)[1]
    code, output = client.run("jobs", "stop", path)
    assert code == 0 and output.startswith("STOPPED waiting-") and "CANCELLED" in output
    assert client.run("submit", path)[0] == 130


def test_what_slurm_refuses_is_told_in_its_own_words(client: Client) -> None:
    path = client.write_sweep("refused", LONG, workers=OVER_BOTH)
    code, output = client.run("submit", path, "--option", "partition=nowhere")
    assert code == 4 and "invalid partition specified: nowhere" in output, output
    assert "submitted" not in output and "refused-" not in client.run("jobs", "list")[1]
    assert not list((client.folder / "raysweep-jobs").glob("refused-*"))
