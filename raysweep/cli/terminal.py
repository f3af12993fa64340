"""Tells a person at a terminal what takes time; a script never sees it."""

from __future__ import annotations

import sys

import typer


def tell_terminal(text: str) -> None:
    """Say on standard error what is going on, where a person sits before it."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)
