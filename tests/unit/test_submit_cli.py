"""`raysweep submit` and `raysweep jobs` as a user types them: last lines, exit codes, and messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import write_sweep
from fake_kubernetes import FakeKubernetes
from fake_ray_dashboard import FakeRayDashboard
from typer.testing import CliRunner

from raysweep.cli.main import app
from raysweep.submit import sending


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `sweep.yaml`, where the commands run; polls do not wait."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sending, "POLL_S", 0.0)
    write_sweep(tmp_path)
    return tmp_path


@pytest.fixture
def dashboard() -> Iterator[FakeRayDashboard]:
    fake = FakeRayDashboard()
    yield fake
    fake.close()


def _raysweep(*words: str) -> tuple[int, list[str]]:
    """Exit code, and the lines of both streams."""
    ran = CliRunner().invoke(app, list(words))
    return ran.exit_code, ran.output.splitlines()


def _sent(dashboard: FakeRayDashboard) -> str:
    code, _ = _raysweep("submit", "sweep.yaml", "--to", "ray", "--address", dashboard.address)
    assert code == 0
    (job_id,) = dashboard.details
    return job_id


def test_a_failed_sweep_is_a_failed_command_however_often_it_is_asked_b67_b69(
    project: Path, dashboard: FakeRayDashboard
) -> None:
    job_id = _sent(dashboard)
    dashboard.runs(job_id)
    dashboard.prints(job_id, "no candidate completed\n")
    dashboard.ends(job_id, 3)
    place = ("--to", "ray", "--address", dashboard.address)
    for words in (
        ("submit", "sweep.yaml", "--follow", *place),
        ("submit", "sweep.yaml", *place),
        ("jobs", "status", "sweep.yaml", *place),
        ("jobs", "status", job_id, *place),
        ("jobs", "logs", job_id, "--follow", *place),
    ):
        code, lines = _raysweep(*words)
        assert (code, lines[-1].split()[0]) == (3, "FAILED"), words
    assert len(dashboard.details) == 1
    code, lines = _raysweep("jobs", "list", *place)
    assert code == 0 and lines[1].split()[:3] == [job_id, "FAILED", "3"]


def test_again_runs_it_once_more_and_its_code_counts_b69(project: Path, dashboard: FakeRayDashboard) -> None:
    job_id = _sent(dashboard)
    dashboard.ends(job_id, 3)
    place = ("--to", "ray", "--address", dashboard.address)
    assert _raysweep("submit", "sweep.yaml", "--again", *place)[0] == 0
    assert _raysweep("jobs", "status", "sweep.yaml", *place)[1][0].startswith(f"PENDING {job_id}-2 ")
    dashboard.ends(f"{job_id}-2", 0)
    assert _raysweep("submit", "sweep.yaml", *place)[0] == 0


def test_a_bad_runtime_environment_is_told_in_rays_own_words_b70(project: Path, dashboard: FakeRayDashboard) -> None:
    job_id = _sent(dashboard)
    said = "Failed to install pip packages: No matching distribution found for no-such-package"
    dashboard.cannot_set_up(job_id, said)
    code, lines = _raysweep("submit", "sweep.yaml", "--follow", "--to", "ray", "--address", dashboard.address)
    assert code == 1
    assert lines[-1].startswith("FAILED ") and lines[-1].endswith(f"RUNTIME_ENV_SETUP_FAILURE {said}")


def test_a_dead_address_is_told_and_nothing_is_said_to_be_sent_b70(project: Path) -> None:
    code, lines = _raysweep("submit", "sweep.yaml", "--to", "ray", "--address", "http://127.0.0.1:1")
    assert code == 4
    assert lines == ["raysweep: ray at http://127.0.0.1:1: Failed to connect to Ray at address: http://127.0.0.1:1."]


def test_settings_come_from_the_file_and_options_go_before_them(project: Path, dashboard: FakeRayDashboard) -> None:
    write_sweep(project, submit={"to": "ray", "ray": {"address": dashboard.address, "python": "python3.9"}})
    assert '"entrypoint": "if' in (shown := "\n".join(_raysweep("submit", "sweep.yaml", "--dry-run")[1]))
    assert "exec python3.9 -m" in shown
    words = ("--dry-run", "--option", "python=python3.11", "--option", "pip=[einops]", "--option", "working_dir=none")
    shown = "\n".join(_raysweep("submit", "sweep.yaml", *words)[1])
    assert "exec python3.11 -m" in shown and '"einops"' in shown and '"working_dir"' not in shown
    assert dashboard.requests == []
    assert _raysweep("submit", "sweep.yaml")[0] == 0 and len(dashboard.details) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("submit", "sweep.yaml"), "--to: say where: ray, slurm, kuberay"),
        (
            ("submit", "sweep.yaml", "--to", "slrm"),
            "--to: 'slrm': must be one of ray, slurm, kuberay (near",
        ),
        (("submit", "sweep.yaml", "--to", "slurm", "--address", "x"), "--address: 'x': is an option of --to ray"),
        (("submit", "sweep.yaml", "--to", "slurm", "--option", "nodes"), "--option: 'nodes': write it as key=value"),
        (("submit", "sweep.yaml", "--to", "slurm", "--option", "nods=2"), "(nearest valid: submit.slurm.nodes)"),
        (("submit", "sweep.yaml", "--to", "slurm", "--option", "extra=[a"), "--option extra: '[a'"),
        (("submit", "sweep.yaml", "--to", "kuberay", "--dry-run"), "submit.kuberay.image: is required"),
        (("jobs", "status", "nothing.yaml", "--to", "slurm"), "sweep file: 'nothing.yaml': cannot be read"),
        (("jobs", "status", "sweep.yaml", "--to", "slurm"), "was not sent to slurm"),
    ],
)
def test_what_cannot_be_right_is_one_message_and_code_2(project: Path, words: tuple[str, ...], message: str) -> None:
    code, lines = _raysweep(*words)
    assert code == 2 and len(lines) == 1
    assert lines[0].startswith("raysweep: ") and message in lines[0]


def test_a_machine_without_slurm_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    code, lines = _raysweep("submit", "sweep.yaml", "--to", "slurm")
    assert code == 4 and "sbatch is not on this machine" in lines[0]
    assert not list((project / "raysweep-jobs").iterdir())  # so that the next try is no second one


def test_a_conflict_of_kuberay_is_shown_and_is_a_failure_b67(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed (extra `kubernetes`)")
    fake = FakeKubernetes()
    try:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(project)))
        place = ("--to", "kuberay", "--option", "image=x", "--option", "results_claim=y")
        assert _raysweep("submit", "sweep.yaml", *place)[0] == 0
        (job_id,) = fake.ray_jobs
        owner = fake.config_maps[job_id]["metadata"]["ownerReferences"][0]
        assert owner["uid"] == fake.ray_jobs[job_id]["metadata"]["uid"]
        fake.says(job_id, "RUNNING", "Failed", reason="DeadlineExceeded", message="took too long")
        code, lines = _raysweep("submit", "sweep.yaml", "--follow", *place)
        assert code == 1 and lines[-1].startswith(f"FAILED {job_id} (jobStatus: RUNNING, jobDeploymentStatus: Failed)")
        assert "DeadlineExceeded took too long" in lines[-1]
        assert lines[-1].endswith("CONFLICT: Ray says RUNNING, the operator says Failed")
        code, lines = _raysweep("jobs", "fetch", job_id, *place)
        assert code == 4 and "in /raysweep/results/" in lines[0]
    finally:
        fake.close()


def test_a_config_map_that_is_refused_leaves_no_job_behind(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed (extra `kubernetes`)")
    fake = FakeKubernetes()
    fake.refuses_config_maps = True
    try:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(project)))
        place = ("--to", "kuberay", "--option", "image=x", "--option", "results_claim=y")
        code, lines = _raysweep("submit", "sweep.yaml", *place)
        assert code == 4 and "answers 403" in lines[0] and 'User "me" cannot create resource "configmaps"' in lines[0]
        assert fake.ray_jobs == {}
    finally:
        fake.close()


def test_a_job_under_kueue_is_deleted_when_it_is_stopped(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed (extra `kubernetes`)")
    fake = FakeKubernetes()
    try:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(project)))
        options = ("image=x", "results_claim=y", "queue=team-a")
        place = ("--to", "kuberay", *(word for option in options for word in ("--option", option)))
        assert _raysweep("submit", "sweep.yaml", *place)[0] == 0
        code, lines = _raysweep("jobs", "stop", "sweep.yaml", *place)
        assert code == 0 and "is gone" in lines[-1]
        assert fake.ray_jobs == {}
    finally:
        fake.close()


@pytest.mark.parametrize("verb", ["list", "status", "logs", "stop", "fetch"])
def test_every_verb_of_jobs_helps(verb: str) -> None:
    code, lines = _raysweep("jobs", verb, "--help")
    assert code == 0 and any("--option" in line for line in lines)


def test_the_examples_of_the_help_render(project: Path) -> None:
    (project / "search_spaces").mkdir()
    (project / "sweep.yaml").rename(project / "search_spaces" / "quickstart.yaml")
    examples = [line.split()[1:] for line in _raysweep("submit", "--help")[1] if "  raysweep " in line]
    assert len(examples) == 2
    for example in examples:
        code, lines = _raysweep(*example, *([] if "--dry-run" in example else ["--dry-run"]))
        assert code == 0 and "raysweep.cli.main run search_spaces/quickstart.yaml" in "".join(lines)
