"""`raysweep export`: writes the winner's files again, or those of a candidate for other frameworks."""

from __future__ import annotations

from pathlib import Path

import typer

from raysweep.errors import ConfigError, NothingSucceeded
from raysweep.exports.answer import choose_answer
from raysweep.exports.targets import parse_targets, write_targets
from raysweep.results.export import remove_best, write_best, write_selection
from raysweep.results.journal import JournalContents, read_journal
from raysweep.results.lock import SweepLock
from raysweep.results.paths import ResultsPaths
from raysweep.results.select import choose_winner
from raysweep.results.store import records_from
from raysweep.search.best import best_of


def export(results: str) -> None:
    """Choose the winner from the records and write `selection.json` and `best/`.

    Raises:
        ConfigError: while a sweep is writing there.
        NothingSucceeded: when there is no winner; an old `best/` is removed then.
    """
    paths = ResultsPaths(results)
    contents = read_journal(paths.journal)
    with SweepLock.acquire(paths.lock):
        _export(results, contents)


def export_to(
    results: str, *, targets: str, candidate_id: str | None, world_size: int | None, output: str | None
) -> None:
    """Write the files of other frameworks below RESULTS/exports/CANDIDATE, or below `output`.

    Nothing else of the results is changed, so it may be done while a sweep is running.

    Raises:
        ConfigError: for a target that is not known, or a candidate that was not measured to its end.
        NothingSucceeded: when no candidate was named and there is no winner.
    """
    names = parse_targets(targets)
    if "://" in results and output is None:
        raise ConfigError(key="--output", rule="is needed with a results URI: exports are written to a local folder")
    answer = choose_answer(
        read_journal(ResultsPaths(results).journal), candidate_id=candidate_id, world_size=world_size
    )
    folder = Path(output) if output else ResultsPaths(results).exports / answer.candidate.candidate_id
    for path in write_targets(answer, names, folder):
        typer.echo(path)
    for sentence in answer.move.sentences():
        typer.echo(sentence)


def _export(results: str, contents: JournalContents) -> None:
    records = records_from(contents)
    selection = choose_winner(
        records,
        measurements=contents.measurements,
        allow_loss_difference=contents.sweep.allow_loss_difference,
        objective=contents.sweep.objective,
    )
    write_selection(results, selection)
    if selection.winner is None:
        remove_best(results)
        raise NothingSucceeded(message=f"{results}: {selection.none_because}")
    folder = write_best(results, best_of(contents, records, selection))
    state = "confirmed" if selection.confirmed else "not confirmed"
    typer.echo(f"{selection.winner} ({state}): {folder}")
