"""Ray Jobs on a cluster that is reached by its dashboard only: token, following, a client that dies, stop, fetch."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import local_cluster
import pyarrow.parquet as pq
import pytest
from jobs import LONG, SHORT, Client, launches, wait_for_code, wait_until
from seeds import built_operators

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[local_cluster.LocalCluster]:
    """One node with two slots and a dashboard."""
    try:
        local_cluster.check_able("jobs")
    except local_cluster.CannotBuild as error:
        pytest.skip(str(error))
    with local_cluster.running("jobs", [2], dashboard=True, seed_home=built_operators()) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: local_cluster.LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """A user outside the node's network with the cluster's token; its files are not on the node."""
    folder = tmp_path_factory.mktemp("my project, it's")
    (folder / ".rayignore").write_text("ignored\n")
    (folder / "ignored").write_text("x")
    head = cluster.nodes[0]
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": head.token, "HOME": str(folder)}
    place = ("--to", "ray", "--address", f"http://{head.address}:8265", "--option", f"python={sys.executable}")
    return Client(folder, *place, environment=environment)


@pytest.mark.parametrize("token", [None, "wrong" * 8])
def test_without_the_token_nothing_starts(client: Client, token: str | None) -> None:
    path = client.write_sweep("refused", LONG)
    refused = {"RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}
    code, output = client.run("submit", path, environment=refused)
    assert code == 4, output
    (line,) = output.splitlines()
    assert "refuses: Authentication" in line and "RAY_AUTH_TOKEN_PATH" in line
    assert "refused-" not in client.run("jobs", "list")[1]


def test_a_sweep_that_cannot_succeed_gives_its_code_each_time(client: Client) -> None:
    # Above what the only candidate is sure to need, below what it takes.
    path = client.write_sweep("hopeless", SHORT, memory_budget="950KiB", space={**SHORT["space"], "zero_stage": [1]})
    code, output = client.run("submit", path, "--follow")
    assert code == 3 and output.splitlines()[-1].startswith("FAILED hopeless-"), output
    assert "samples/s" not in output and "OOM" in output
    for words in (("submit", path), ("jobs", "status", path), ("jobs", "logs", path, "--follow")):
        assert client.run(*words)[0] == 3


def test_a_sweep_outlives_its_client_is_stopped_goes_on_and_comes_home(
    client: Client, cluster: local_cluster.LocalCluster
) -> None:
    path = client.write_sweep("long", LONG)
    follower = client.start("submit", path, "--follow")
    assert follower.stdout
    for line in follower.stdout:
        if "samples/s" in line:
            break
    follower.kill()
    follower.wait()
    code, output = client.run("submit", path)
    assert code == 0 and output.startswith("attached to long-") and "RUNNING" in output, output
    job_id = output.split()[2].rstrip(",")
    journal = cluster.nodes[0].tmp("home", "raysweep", job_id, "journal.jsonl")
    before = len(launches(journal))
    wait_until(lambda: len(launches(journal)) > before, said=lambda: client.run("jobs", "logs", job_id))

    assert client.run("jobs", "stop", job_id)[0] == 0
    wait_for_code(client, 130, job_id)
    code, output = client.run("jobs", "fetch", job_id, "--output", "partly")
    assert code == 0 and (client.folder / "partly" / "best" / "UNCONFIRMED").exists(), output
    measured = {row["candidate_id"] for row in launches(client.folder / "partly" / "journal.jsonl")}
    assert 1 < len(measured) < 9

    code, output = client.run("submit", path, "--again", "--follow")
    assert code == 5 and output.splitlines()[-1].startswith(f"FAILED {job_id}-2 (ray: FAILED, exit code 5)"), output
    assert "Winner, NOT confirmed" in output and "[repeated" not in output
    assert client.run("jobs", "status", path)[0] == client.run("jobs", "status", path)[0] == 5
    assert client.run("jobs", "fetch", path)[0] == 0
    here = client.folder / "results" / job_id
    assert (here / "best" / "ds_config.json").exists()
    rows = launches(here / "journal.jsonl")
    again = [row["candidate_id"] for row in rows]
    assert len(set(again)) == 9 and all(again.count(each) == 1 for each in measured)
    assert pq.read_table(here / "trials.parquet").num_rows == 9


def test_what_is_ignored_is_not_on_the_cluster(cluster: local_cluster.LocalCluster) -> None:
    unpacked = list(cluster.nodes[0].tmp("ray").glob("session_*/runtime_resources/working_dir_files/*/"))
    assert unpacked, "the package is there"
    for folder in unpacked:
        assert not (folder / "ignored").exists()
        assert (folder / "raysweep" / "cli" / "main.py").exists() and list(folder.glob("*.yaml"))
