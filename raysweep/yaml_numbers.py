"""YAML and JSON readers that take `5e8` for the number it is, and for an integer where it is whole."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """PyYAML follows YAML 1.1, where `5e8` is text because it has no dot; YAML 1.2 and people say number."""


_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9]*)?[eE][-+]?[0-9]+")
_Loader.add_implicit_resolver("!exponent", _EXPONENT, list("-+0123456789"))
_Loader.add_constructor("!exponent", lambda loader, node: _number(str(node.value)))


def load_yaml(text: str) -> Any:
    """The plain value of a YAML text.

    Raises:
        yaml.YAMLError: when the text is no YAML.
    """
    return yaml.load(text, Loader=_Loader)


def load_json(text: str) -> Any:
    """The plain value of a JSON text; `5e8` gives the integer 500000000.

    Raises:
        json.JSONDecodeError: when the text is no JSON.
    """
    return json.loads(text, parse_float=_number)


def _number(text: str) -> int | float:
    number = float(text.replace("_", ""))
    return int(number) if "e" in text.lower() and number.is_integer() else number
