"""The group of all verbs: an error of ours becomes one message and an exit code."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

from raysweep.errors import RaysweepError

INTERRUPTED = 130
EXIT_CODES = """\
Exit codes: 0 a winner was confirmed; 1 the results cannot be read or written; 2 wrong input; 3 nothing succeeded;
4 something the sweep needs is not there; 5 a best was found but not confirmed; 130 interrupted.
"""


class Verbs(typer.core.TyperGroup):
    """Turns our errors into one message and an exit code; wrong options are typer's own business."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RaysweepError as error:
            typer.echo(f"raysweep: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            raise  # the reader of a pipe has seen enough; click knows what to do
        except OSError as error:  # a disk that is full, a folder that may not be read
            where = f"{error.filename}: " if error.filename else ""
            typer.echo(f"raysweep: {where}{error.strerror or error}", err=True)
            raise typer.Exit(RaysweepError.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("raysweep: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
