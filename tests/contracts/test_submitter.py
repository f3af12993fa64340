"""The submitter contract, on every place: the same suite against what speaks the place's own interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import write_sweep
from fake_kubernetes import FakeKubernetes
from fake_ray_dashboard import FakeRayDashboard
from fake_slurm import FakeSlurm

from raysweep.errors import ConfigError, PreflightError
from raysweep.submit.job import JobRequest, JobState, Submitter
from raysweep.submit.places import make_submitter
from raysweep.submit.sending import follow, latest_job, send
from raysweep.submit_schema import PLACES
from raysweep.sweep_file import load_sweep, submit_section


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place, what is behind it, and the sweep that is sent there."""

    submitter: Submitter
    fake: FakeRayDashboard | FakeSlurm | FakeKubernetes
    request: JobRequest
    results: Path
    unreachable: Submitter

    def sent(self) -> str:
        """The name of a job that was sent just now."""
        return send(self.submitter, self.request).job_id


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    results = tmp_path / "store" / "tiny"
    sweep = load_sweep(write_sweep(project, results=results.as_uri()))
    make, close = {"ray": _ray, "slurm": _slurm, "kuberay": _kuberay}[request.param](tmp_path, monkeypatch)
    submitter, fake, unreachable = make()
    yield Place(
        submitter=submitter, fake=fake, request=JobRequest(sweep=sweep), results=results, unreachable=unreachable
    )
    close()


Made = tuple[Submitter, FakeRayDashboard | FakeSlurm | FakeKubernetes, Submitter]
Maker = tuple[Callable[[], Made], Callable[[], None]]


def _ray(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    # What a person names goes before what Ray would find by itself.
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    fake = FakeRayDashboard()

    def make() -> Made:
        section = submit_section({"ray": {"address": fake.address}})
        dead = submit_section({"ray": {"address": "http://127.0.0.1:1"}})
        return make_submitter("ray", section), fake, make_submitter("ray", dead)

    return make, fake.close


def _slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    fake = FakeSlurm(folder / "slurm")
    monkeypatch.setenv("PATH", f"{fake.bin}:/usr/bin:/bin")
    nowhere = folder / "nowhere"
    nowhere.mkdir()
    (nowhere / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    )
    (nowhere / "sbatch").chmod(0o755)

    class Unreachable:
        """Slurm whose controller is down."""

        def __init__(self) -> None:
            self._inner = make_submitter("slurm", submit_section({"slurm": {"folder": "elsewhere"}}))

        def submit(self, request: JobRequest) -> None:
            with monkeypatch.context() as patched:
                patched.setenv("PATH", f"{nowhere}:/usr/bin:/bin")
                self._inner.submit(request)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    return (lambda: (make_submitter("slurm", submit_section({})), fake, Unreachable())), lambda: None


def _kuberay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed (extra `kubernetes`)")
    fake = FakeKubernetes()
    section = submit_section({"kuberay": {"image": "registry/raysweep:1"}})

    def make() -> Made:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(folder)))
        submitter = make_submitter("kuberay", section)
        assert submitter.jobs() == []
        monkeypatch.setenv("KUBECONFIG", str(folder / "no-such-file"))
        return submitter, fake, make_submitter("kuberay", section)

    return make, fake.close


def test_a_dry_run_asks_nobody_and_names_the_command(place: Place) -> None:
    shown = place.unreachable.render(place.request)
    assert "raysweep.cli.main run sweep.yaml" in shown and place.request.job_id in shown
    assert str(place.results) in shown


def test_a_job_goes_from_taken_to_done(place: Place) -> None:
    job_id = place.sent()
    assert place.submitter.status(job_id).state is JobState.PENDING
    assert place.submitter.logs(job_id) == ""
    place.fake.runs(job_id)
    place.fake.prints(job_id, "searching\n")
    assert place.submitter.status(job_id).state is JobState.RUNNING
    assert place.submitter.logs(job_id) == "searching\n"
    assert place.submitter.status(job_id).code == 0
    place.fake.ends(job_id, 0)
    assert place.submitter.status(job_id).state is JobState.SUCCEEDED
    assert [status.job_id for status in place.submitter.jobs()] == [job_id]


@pytest.mark.parametrize("exit_code", [1, 3, 5])
def test_a_failed_sweep_gives_its_exit_code_each_time_that_it_is_asked_b69(place: Place, exit_code: int) -> None:
    job_id = place.sent()
    place.fake.runs(job_id)
    place.fake.ends(job_id, exit_code)
    for _ in range(3):
        status = place.submitter.status(job_id)
        assert (status.state, status.exit_code, status.code) == (JobState.FAILED, exit_code, exit_code)
        assert status.line().startswith("FAILED ")
        before = send(place.submitter, place.request).before
        assert before is not None and before.code == exit_code


def test_the_same_sweep_sent_again_attaches(place: Place) -> None:
    job_id = place.sent()
    sent = send(place.submitter, place.request)
    assert sent.job_id == job_id and sent.before is not None
    assert latest_job(place.submitter, place.request) == job_id
    assert len(place.submitter.jobs()) == 1


def test_again_sends_an_ended_job_once_more_and_no_other(place: Place) -> None:
    job_id = place.sent()
    place.fake.runs(job_id)
    with pytest.raises(ConfigError, match="RUNNING there; stop it first"):
        send(place.submitter, place.request, again=True)
    place.fake.ends(job_id, 3)
    sent = send(place.submitter, place.request, again=True)
    assert sent.before is None and sent.job_id == f"{job_id}-2"
    assert latest_job(place.submitter, place.request) == f"{job_id}-2"
    assert place.submitter.status(job_id).code == 3


def test_a_client_that_comes_second_attaches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = place.sent()
    monkeypatch.setattr(type(place.submitter), "jobs", lambda self: [])  # what it saw just before the other had sent
    assert send(place.submitter, place.request).before == place.submitter.status(job_id)


def test_a_job_that_is_stopped_is_no_success(place: Place) -> None:
    job_id = place.sent()
    place.fake.runs(job_id)
    place.submitter.stop(job_id)
    status = place.submitter.status(job_id)
    assert (status.state, status.code) == (JobState.STOPPED, 130)


def test_a_job_that_waits_can_be_stopped_too(place: Place) -> None:
    job_id = place.sent()
    place.submitter.stop(job_id)
    assert place.submitter.status(job_id).state is JobState.STOPPED


def test_stopping_what_has_ended_changes_nothing(place: Place) -> None:
    job_id = place.sent()
    place.fake.runs(job_id)
    place.fake.ends(job_id, 0)
    place.submitter.stop(job_id)
    assert place.submitter.status(job_id).state is JobState.SUCCEEDED


def test_a_job_that_is_not_there_is_refused_with_those_that_are(place: Place) -> None:
    job_id = place.sent()
    unknown = "other-0123456789ab"
    for ask in (place.submitter.status, place.submitter.logs, place.submitter.stop):
        with pytest.raises(ConfigError, match=f"{unknown}.*is not known.*{job_id}"):
            ask(unknown)


def test_a_sweep_that_was_not_sent_has_no_job(place: Place) -> None:
    with pytest.raises(ConfigError, match="was not sent to"):
        latest_job(place.submitter, place.request)


def test_following_shows_the_log_once_and_ends_with_the_job(place: Place) -> None:
    job_id = place.sent()
    steps: list[Callable[[], None]] = [
        lambda: place.fake.runs(job_id),
        lambda: place.fake.prints(job_id, "one\n"),
        lambda: place.fake.prints(job_id, "two\n"),
        lambda: (place.fake.prints(job_id, "no candidate completed\n"), place.fake.ends(job_id, 3))[0],
    ]
    shown: list[str] = []
    notes: list[str] = []
    status = follow(place.submitter, job_id, write=shown.append, note=notes.append, sleep=lambda _: steps.pop(0)())
    assert "".join(shown) == "one\ntwo\nno candidate completed\n" and steps == []
    assert [note.split()[0] for note in notes] == ["PENDING", "RUNNING"]
    assert status.code == 3 and status.line().startswith("FAILED ")


def test_what_the_place_says_when_it_refuses_is_shown_b70(place: Place) -> None:
    with pytest.raises(PreflightError) as refused:
        place.unreachable.submit(place.request)
    words = (
        "Failed to connect to Ray at address: http://127.0.0.1:1",
        "failed with code 1: sbatch: error: Unable to contact slurm controller (connect failure)",
        "Invalid kube-config",
    )
    assert any(each in str(refused.value) for each in words), str(refused.value)
    assert place.submitter.jobs() == []


def test_results_at_a_uri_are_fetched(place: Place, tmp_path: Path) -> None:
    job_id = place.sent()
    (place.results / "best").mkdir(parents=True)
    (place.results / "best" / "ds_config.json").write_text("{}")
    source = place.submitter.fetch(job_id, tmp_path / "here")
    assert source == place.results.as_uri()
    assert (tmp_path / "here" / "best" / "ds_config.json").read_text() == "{}"
