"""What is sent of a working directory, and what the other side receives of its names and words."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from builders import write_sweep
from fake_ray_dashboard import FakeRayDashboard

from raysweep.errors import ConfigError, PreflightError
from raysweep.submit import ray_jobs
from raysweep.submit.driver_command import driver_command, in_shell
from raysweep.submit.job import JobRequest
from raysweep.submit.kuberay_manifest import PACKAGE_LIMIT_BYTES, render_manifests
from raysweep.submit.log_archive import printing_command, unpack_from_log
from raysweep.submit.package import pack
from raysweep.submit.places import make_submitter
from raysweep.submit.slurm_script import render_scripts
from raysweep.submit_schema import KubeRaySubmit, SlurmSubmit
from raysweep.sweep_file import load_sweep, submit_section
from raysweep.units import MIB


def _file(path: Path, size_bytes: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)


def _names(folder: Path) -> list[str]:
    return [name for name, _ in pack(folder, with_raysweep=False).files]


def test_git_and_what_ignore_files_name_is_left_out(tmp_path: Path) -> None:
    for name in (".git/objects/a", ".venv/lib", "a/__pycache__/m.pyc", "a/m.py", "a/big.bin", "b/keep.log", "b/x.log"):
        _file(tmp_path / name)
    _file(tmp_path / "data" / "deep" / "x")
    (tmp_path / ".gitignore").write_text("*.log\n/data/\n")
    (tmp_path / ".rayignore").write_text("*.bin\n")
    (tmp_path / "b" / ".gitignore").write_text("!keep.log\n")
    assert _names(tmp_path) == [".gitignore", ".rayignore", "a/m.py", "b/.gitignore", "b/keep.log"]


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    _file(tmp_path / "project" / "m.py")
    _file(tmp_path / "data" / "x")
    (tmp_path / "project" / "data").symlink_to(tmp_path / "data")
    (tmp_path / "project" / "loop").symlink_to(tmp_path / "project")
    assert _names(tmp_path / "project") == ["m.py"]


def test_raysweep_goes_along_unless_the_folder_holds_one(tmp_path: Path) -> None:
    _file(tmp_path / "sweep.yaml")
    sent = [name for name, _ in pack(tmp_path, with_raysweep=True).files]
    assert "raysweep/cli/main.py" in sent and "raysweep/submit/templates/job.sbatch.j2" in sent
    assert not [name for name in sent if "__pycache__" in name]
    _file(tmp_path / "raysweep" / "__init__.py")
    assert _names(tmp_path) == ["raysweep/__init__.py", "sweep.yaml"]


def test_equal_files_make_an_equal_package(tmp_path: Path) -> None:
    for copy in ("one", "two"):
        _file(tmp_path / copy / "m.py", 10)
        (tmp_path / copy / "run.sh").write_text("echo\n")
        (tmp_path / copy / "run.sh").chmod(0o755)
        os.utime(tmp_path / copy / "m.py", (len(copy), hash(copy) % 1000))
        pack(tmp_path / copy, with_raysweep=False).write(tmp_path / f"{copy}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert [entry.external_attr >> 16 for entry in archive.infolist()] == [0o644, 0o755]


def test_what_is_too_large_is_told_before_it_is_sent_b66(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _file(tmp_path / ".git" / "objects" / "pack", 400 * MIB)
    _file(tmp_path / "weights" / "model.bin", 150 * MIB)
    for number in range(40):
        _file(tmp_path / "samples" / f"{number}.txt", MIB // 2)
    for size in (1, 2, 3, 4):
        _file(tmp_path / f"f{size}", size * MIB)
    sweep = load_sweep(write_sweep(tmp_path))
    dashboard = FakeRayDashboard()
    try:
        submitter = make_submitter("ray", submit_section({"ray": {"address": dashboard.address}}))
        with pytest.raises(ConfigError) as refused:
            submitter.submit(JobRequest(sweep=sweep))
    finally:
        dashboard.close()
    limit, *listed = str(refused.value).splitlines()
    assert "limit of 100.0 MiB of Ray's dashboard; nothing was sent" in limit
    assert [line.split()[0] for line in listed[:5]] == ["weights/model.bin", "samples/", "f4", "f3", "f2"]
    assert ".git" not in "".join(listed[:5]) and ".rayignore" in listed[5]
    assert not [path for method, path in dashboard.requests if method in ("PUT", "POST")]


def test_a_config_map_takes_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.bin").write_bytes(os.urandom(PACKAGE_LIMIT_BYTES))
    options = KubeRaySubmit(image="x", results_claim="y")
    request = JobRequest(sweep=load_sweep(write_sweep(tmp_path)))
    with pytest.raises(ConfigError, match=r"limit of 976.6 KiB of a ConfigMap.*\n *noise.bin"):
        render_manifests(request, options)


def test_a_sweep_outside_the_working_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    request = JobRequest(sweep=load_sweep(write_sweep(tmp_path)))
    section = submit_section({"ray": {"working_dir": str(tmp_path / "project")}})
    with pytest.raises(ConfigError, match=f"would not be sent .nearest valid: {tmp_path}"):
        make_submitter("ray", section).render(request)


PRINTS_WORDS = "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done\n"
AWKWARD = "I'm 72\" tall -4C"


def _shell(command: str, folder: Path) -> list[str]:
    ran = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_words_arrive_as_they_were_written_b64(tmp_path: Path) -> None:
    folder = tmp_path / "my model dir" / "it''s"
    folder.mkdir(parents=True)
    python = folder / "python"
    python.write_text(PRINTS_WORDS)
    python.chmod(0o755)
    command = driver_command(
        python=[str(python), AWKWARD], sweep=f"{AWKWARD}.yaml", address='"$A"', **in_shell(f"results/{AWKWARD}")
    )
    words = [AWKWARD, "-m", "raysweep.cli.main", "run", f"{AWKWARD}.yaml", "--address", "a b"]
    words += ["--results", f"results/{AWKWARD}", "--yes"]
    assert _shell(f"A='a b'; {command}", folder) == words
    _file(folder / "results" / AWKWARD / "journal.jsonl")
    assert _shell(f"A='a b'; {command}", folder) == [*words, "--resume"]


def test_the_driver_of_a_slurm_job_gets_them_too_b64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "my model dir" / "it''s"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    job_folder = project / "raysweep-jobs" / "job"
    job_folder.mkdir(parents=True)
    python = project / "python"
    python.write_text(PRINTS_WORDS)
    python.chmod(0o755)
    request = JobRequest(sweep=load_sweep(write_sweep(project)))
    scripts = render_scripts(request, SlurmSubmit(python=str(python)), working_dir=project, folder=job_folder)
    (job_folder / "driver.sh").write_text(scripts["driver.sh"])
    printed = _shell(f"bash {shlex.quote(str(job_folder / 'driver.sh'))} 'h:1 x'", tmp_path)
    assert printed[2:] == ["run", "sweep.yaml", "--address", "h:1 x", "--results", str(project / "results"), "--yes"]
    assert (job_folder / "exit_code").read_text() == "0\n"
    checked = subprocess.run(["bash", "-n"], input=scripts["job.sbatch"], text=True, check=False)
    assert checked.returncode == 0


def test_the_entry_point_of_a_ray_job_is_one_line_for_a_shell_b64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it's").mkdir()
    request = JobRequest(sweep=load_sweep(write_sweep(tmp_path / "it's", name=AWKWARD)))
    shown = json.loads(make_submitter("ray", submit_section({})).render(request))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(PRINTS_WORDS)
    (tmp_path / "bin" / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home of/me")
    printed = _shell(shown["entrypoint"], tmp_path)
    results = f"/home of/me/raysweep/{request.base_id}"
    assert printed[3:] == ["it's/sweep.yaml", "--address", "auto", "--results", results, "--yes"]
    assert shown["submission_id"] == request.job_id and shown["metadata"]["raysweep"] == AWKWARD


def test_results_come_through_a_log(tmp_path: Path) -> None:
    _file(tmp_path / "there" / "best" / "ds_config.json", 3000)
    command = printing_command(sys.executable, shlex.quote(str(tmp_path / "there")))
    log = f"Running entrypoint for job x: {command}\n" + "\n".join(_shell(command, tmp_path)) + "\n"
    unpack_from_log(log, tmp_path / "here")
    assert (tmp_path / "here" / "best" / "ds_config.json").stat().st_size == 3000
    with pytest.raises(PreflightError, match="did not arrive whole"):
        unpack_from_log(log.rpartition("-----END")[0], tmp_path / "again")


def test_ray_takes_what_the_limit_says() -> None:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    assert ray_jobs.PACKAGE_LIMIT_BYTES == DASHBOARD_CLIENT_MAX_SIZE
