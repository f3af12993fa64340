"""Every file name of a sweep, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOURNAL = "journal.jsonl"
MEASUREMENTS = "measurements.parquet"
TRIALS = "trials.parquet"


def local_folder(results: str) -> str:
    """Where the journal and the logs of a sweep are: the results folder, or for a URI a local one of that name."""
    return results if "://" not in results else str(Path("results", results.rstrip("/").rpartition("/")[2]))


@dataclass(frozen=True, slots=True)
class ResultsPaths:
    """The files under one results folder on the driver's disk."""

    root: str

    def _path(self, *names: str) -> Path:
        return Path(self.root, *names)

    @property
    def journal(self) -> Path:
        """Append-only JSON lines: the truth from which both Parquet files are made."""
        return self._path(JOURNAL)

    @property
    def sweep_file(self) -> Path:
        """Copy of the sweep file."""
        return self._path("sweep.yaml")

    @property
    def measurements(self) -> Path:
        """One row a launch."""
        return self._path(MEASUREMENTS)

    @property
    def trials(self) -> Path:
        """One row a candidate."""
        return self._path(TRIALS)

    @property
    def selection(self) -> Path:
        """The winner, and why each other candidate lost."""
        return self._path("selection.json")

    @property
    def best(self) -> Path:
        """Folder with the winner's files."""
        return self._path("best")

    @property
    def ds_config(self) -> Path:
        """The winner's DeepSpeed config."""
        return self._path("best", "ds_config.json")

    @property
    def best_yaml(self) -> Path:
        """The winner, its figures and their provenance."""
        return self._path("best", "best.yaml")

    @property
    def environment_script(self) -> Path:
        """Variables under which the winner was measured, for a shell."""
        return self._path("best", "env.sh")

    @property
    def train_script(self) -> Path:
        """Trains the winner with Ray Train."""
        return self._path("best", "train_ray.py")

    @property
    def unconfirmed_marker(self) -> Path:
        """There only while the best has not been confirmed."""
        return self._path("best", "UNCONFIRMED")

    @property
    def exports(self) -> Path:
        """Folder with what was exported for other frameworks, a folder a candidate."""
        return self._path("exports")

    @property
    def trackers(self) -> Path:
        """Folder with what experiment trackers keep on disk, a folder each."""
        return self._path("trackers")

    def report(self, ending: str) -> Path:
        """The report: html, md or csv."""
        return self._path(f"report.{ending}")

    @property
    def lock(self) -> Path:
        """Held by the driver that writes here."""
        return self._path("lock")

    @property
    def logs(self) -> Path:
        """Folder of log files, one a rank."""
        return self._path("logs")
