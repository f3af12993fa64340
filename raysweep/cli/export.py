"""`raysweep export`: writes the winner's files again."""

from __future__ import annotations

import typer

from raysweep.errors import NothingSucceeded
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


def _export(results: str, contents: JournalContents) -> None:
    records = records_from(contents)
    selection = choose_winner(
        records,
        measurements=contents.measurements,
        allow_loss_difference=contents.sweep.allow_loss_difference,
    )
    write_selection(results, selection)
    if selection.winner is None:
        remove_best(results)
        raise NothingSucceeded(message=f"{results}: no candidate completed within the budget")
    folder = write_best(results, best_of(contents, records, selection))
    state = "confirmed" if selection.confirmed else "not confirmed"
    typer.echo(f"{selection.winner} ({state}): {folder}")
