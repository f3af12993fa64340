"""Writes docs/reference/ anew from the code: the sweep file, the command line, the Parquet files, the exit codes."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import click
import pyarrow as pa
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from source_tree import ROOT

from raysweep import errors
from raysweep.cli.main import app
from raysweep.cli.run import UNCONFIRMED
from raysweep.cli.verbs import INTERRUPTED
from raysweep.model_schema import MODEL_SECTIONS
from raysweep.results.schema import SCHEMA_VERSION, measurements_schema, trials_schema
from raysweep.section import Section
from raysweep.sweep_schema import SweepFile

REFERENCE = ROOT / "docs" / "reference"
WRITTEN = "Written from the code by `make format`; a test compares it."
WIDTH = 100


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "sweep-file.md": _sweep_file(),
        "command-line.md": _command_line(),
        "parquet.md": _parquet(),
        "exit-codes.md": _exit_codes(),
    }


def _sweep_file() -> str:
    parts = [
        f"# Reference: sweep file\n\n{WRITTEN}\n\nWhat to choose is told in [sweep-file.md](../sweep-file.md) and "
        "[models.md](../models.md). A key that is not here is refused."
    ]
    parts += list(_section("top level", "", SweepFile))
    return "\n\n".join(parts) + "\n"


def _section(title: str, prefix: str, section: type[BaseModel]) -> Iterator[str]:
    meanings, inner = _docstrings(section), []
    rows = []
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        if path == "model":
            inner += [(f"model, kind {kind}", "model.", each) for kind, each in MODEL_SECTIONS.items()]
            continue
        deeper = _inner(field.annotation)
        if deeper is not None:
            inner.append((path, f"{path}.", deeper))
            if field.get_default(call_default_factory=True) is not None:
                continue
        meaning = meanings.get(name) or (_first_sentence(deeper) if deeper else "")
        rows.append((f"`{path}`", _type(field), _default(field), meaning))
    text = f"## {title}\n\n{_first_sentence(section)}"
    yield text + ("\n\n" + _table(("key", "type", "default", "meaning"), rows) if rows else "")
    for each in inner:
        yield from _section(*each)


def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Field -> the string under it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return found


def _first_sentence(section: type[BaseModel] | None) -> str:
    return (inspect.getdoc(section) or "").splitlines()[0] if section else ""


def _inner(annotation: Any) -> type[BaseModel] | None:
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, Section)), None)


def _type(field: FieldInfo) -> str:
    return _name(field.annotation)


def _name(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _name(inner[0])
    if origin is typing.Literal:
        return ", ".join(f"`{each}`" for each in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_name(each) for each in inner if each is not type(None))
    if origin is list:
        return f"list of {_name(inner[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    names = {int: "integer", float: "number", str: "text", bool: "true or false", types.NoneType: "none"}
    return names.get(annotation, "any")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return {"None": "none", "True": "true", "False": "false"}.get(str(value), str(value))


def _command_line() -> str:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    parts = [f"# Reference: command line\n\n{WRITTEN}", _help("raysweep", group)]
    parts += [_help(f"raysweep {name}", command) for name, command in group.commands.items()]
    return "\n\n".join(parts) + "\n"


def _help(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"## {name}\n\n```text\n{text.strip()}\n```"


def _parquet() -> str:
    head = (
        f"# Reference: Parquet files\n\n{WRITTEN}\n\nSchema version {SCHEMA_VERSION}: it is raised when a column "
        "changes its meaning or goes. What the columns mean is told in [results.md](../results.md)."
    )
    files = {"trials.parquet": trials_schema(), "measurements.parquet": measurements_schema()}
    return "\n\n".join([head, *(_columns(name, schema) for name, schema in files.items())]) + "\n"


def _columns(name: str, schema: pa.Schema) -> str:
    units = {"_bytes": "bytes", "_per_s": "per second", "_s": "seconds"}
    rows = []
    for column in schema:
        unit = next((told for ending, told in units.items() if _base(column.name).endswith(ending)), "")
        rows.append((f"`{column.name}`", str(column.type), unit))
    return f"## {name}\n\n" + _table(("column", "type", "unit"), rows)


def _base(name: str) -> str:
    """The name less what says which figure of several it is."""
    for ending in ("_low", "_high", "_median", "_iqr", "_per_step"):
        name = name.removesuffix(ending)
    return name


def _exit_codes() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    rows = {0: ("", "the command did what it says; of `run`, a winner was confirmed")}
    for kind in kinds:
        if issubclass(kind, errors.RaysweepError):
            names, told = rows.get(kind.exit_code, ("", ""))
            first = kind is errors.RaysweepError or "exit_code" in vars(kind)
            sentence = (inspect.getdoc(kind) or "").splitlines()[0] if first else ""
            rows[kind.exit_code] = (f"{names}, `{kind.__name__}`".strip(", "), told or sentence)
    rows[UNCONFIRMED] = ("", "a best was found and not confirmed")
    rows[INTERRUPTED] = ("", "interrupted by Ctrl-C or SIGTERM; what was measured is kept")
    table = _table(
        ("code", "errors of `raysweep.errors`", "meaning"), [(str(code), *rows[code]) for code in sorted(rows)]
    )
    return f"# Reference: exit codes\n\n{WRITTEN}\n\n{table}\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
