"""Fills the text files that are code: Jinja2 templates, whose values are written as literals of their language."""

from __future__ import annotations

import pprint
import shlex
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysweep.exports.answer import Answer
from raysweep.exports.provenance import comment, comment_lines


@lru_cache(maxsize=1)
def _environment() -> Environment:
    # Not HTML, so nothing is escaped for it: values go through `py` or `sh`.
    environment = Environment(
        loader=PackageLoader("raysweep.exports"),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["py"] = python_literal
    environment.filters["sh"] = shlex.quote
    return environment


def fill(template: str, answer: Answer, **values: Any) -> str:
    """The text of a template; `answer`, `provenance` (a comment of `#` lines) and `lines` are always there."""
    return (
        _environment()
        .get_template(template)
        .render(answer=answer, provenance=comment(answer), lines=comment_lines(answer), **values)
    )


def python_literal(value: Any) -> str:
    """A plain value as Python source."""
    return pprint.pformat(value, width=110, sort_dicts=False)
