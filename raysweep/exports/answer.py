"""One measured candidate with all that its files tell, wherever they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysweep.candidate import Candidate
from raysweep.clock import utc_now
from raysweep.ds_config import render
from raysweep.errors import ConfigError, NothingSucceeded, nearest_name
from raysweep.exports.batch_move import BatchMove
from raysweep.exports.placement import Placement, place
from raysweep.results.journal import JournalContents
from raysweep.results.records import TrialRecord
from raysweep.results.select import Selection, choose_winner
from raysweep.results.store import records_from
from raysweep.serde import sha256_of
from raysweep.trial import Measurement, SweepStart, TrialStatus
from raysweep.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is exported."""

    candidate: Candidate
    record: TrialRecord
    selection: Selection
    sweep: SweepStart
    workload: Workload
    """As exported: with the number of workers that was asked for."""
    ds_config: Mapping[str, Any]
    """As the workers ran it; it holds no total batch, so it serves any number of workers."""
    device: str
    """`cpu`, or the GPU's model."""
    placement: Placement
    move: BatchMove
    exported_at: str
    """UTC, ISO 8601."""

    @property
    def is_winner(self) -> bool:
        """Whether it is the sweep's winner."""
        return self.selection.winner == self.candidate.candidate_id

    @property
    def on_cuda(self) -> bool:
        """Whether workers have a GPU each."""
        return self.workload.device == "cuda"


def choose_answer(
    contents: JournalContents, *, candidate_id: str | None = None, world_size: int | None = None
) -> Answer:
    """The candidate to export: the winner, or the one that is named.

    Raises:
        ConfigError: when the named candidate is none of this sweep's, or was not measured to its end.
        NothingSucceeded: when no candidate was named and there is no winner.
    """
    records = records_from(contents)
    selection = choose_winner(
        records,
        measurements=contents.measurements,
        allow_loss_difference=contents.sweep.allow_loss_difference,
        objective=contents.sweep.objective,
    )
    chosen = candidate_id or selection.winner
    if chosen is None:
        raise NothingSucceeded(message=f"{selection.none_because}, so there is nothing to export")
    record = _completed(records, chosen, selection)
    candidate = next(row.candidate for row in contents.sweep.plan_rows if row.candidate.candidate_id == chosen)
    launch = _last_completed(contents.measurements, chosen)
    return _answer(contents.sweep, candidate, record, selection, launch, world_size or record.world_size)


def _answer(
    sweep: SweepStart,
    candidate: Candidate,
    record: TrialRecord,
    selection: Selection,
    launch: Measurement,
    world_size: int,
) -> Answer:
    ds_config = render(candidate, workload=sweep.workload.of(candidate), base=sweep.base_ds_config)
    assert sha256_of(ds_config) == launch.ds_config_sha256, "what is exported is what was measured"
    assert launch.figures is not None, "completed"
    learning_rate = ds_config["optimizer"].get("params", {}).get("lr")
    return Answer(
        candidate=candidate,
        record=record,
        selection=selection,
        sweep=sweep,
        workload=replace(sweep.workload.of(candidate), world_size=world_size),
        ds_config=ds_config,
        device=" ".join(launch.figures.device.split()),
        placement=place(world_size, measured_nodes=launch.nodes or launch.figures.nodes),
        move=BatchMove(
            micro_batch_size_per_gpu=candidate.micro_batch_size_per_gpu,
            gradient_accumulation_steps=candidate.gradient_accumulation_steps,
            measured_world_size=record.world_size,
            world_size=world_size,
            learning_rate=learning_rate,
        ),
        exported_at=utc_now(),
    )


def _completed(records: Sequence[TrialRecord], candidate_id: str, selection: Selection) -> TrialRecord:
    known = {record.candidate_id: record for record in records}
    record = known.get(candidate_id)
    if record is None:
        raise ConfigError(
            key="--candidate",
            value=candidate_id,
            rule="is no candidate of this sweep; raysweep show RESULTS lists them",
            nearest=nearest_name(candidate_id, known),
        )
    if record.status is not TrialStatus.COMPLETED:
        raise ConfigError(
            key="--candidate",
            value=candidate_id,
            rule=f"has no figures: {record.status}, {record.reason}",
            nearest=selection.winner,
        )
    return record


def _last_completed(measurements: Sequence[Measurement], candidate_id: str) -> Measurement:
    completed = [
        each for each in measurements if each.candidate_id == candidate_id and each.status is TrialStatus.COMPLETED
    ]
    return completed[-1]
