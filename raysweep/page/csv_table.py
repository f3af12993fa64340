"""The table of candidates as CSV."""

from __future__ import annotations

import csv
import io

from raysweep.page.facts import ReportFacts
from raysweep.page.rows import HEADINGS, NUMERIC, table_rows

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def csv_table(facts: ReportFacts) -> str:
    """A head and a row a candidate; numbers in full, an empty cell where there is none.

    Text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADINGS)
    for row in table_rows(facts):
        cells = zip(HEADINGS, row.cells, strict=True)
        writer.writerow([cell.value if name in NUMERIC else _inert(cell.text) for name, cell in cells])
    return file.getvalue()


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text
