"""The size and the form of modules and functions."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from source_tree import ROOT, module_paths, parsed

MOST_LINES_OF_A_FILE = 300
MOST_LINES_OF_A_FUNCTION = 60


@pytest.mark.parametrize("module", module_paths())
def test_a_module_opens_with_its_sentence(module: str) -> None:
    docstring = ast.get_docstring(parsed(module_paths()[module]))
    assert docstring and "\n" not in docstring and docstring.endswith(".")


def test_no_file_is_too_long() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in module_paths().items()}
    assert {module: lines for module, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{module}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module, path in module_paths().items()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports them by their name alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert [module for module in module_paths() if module.rpartition(".")[2] in drawers] == []
