"""Writes YAML that people read: a text of several lines as a block, equal parts in full rather than by reference."""

from __future__ import annotations

from typing import Any

import yaml


class ReadableDumper(yaml.SafeDumper):
    """Pass it as `Dumper` to `yaml.dump`."""

    def ignore_aliases(self, data: Any) -> bool:
        """PyYAML's hook: never a reference."""
        return True

    def represent_lines(self, text: str) -> yaml.Node:
        """Text of several lines as a block."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


ReadableDumper.add_representer(str, ReadableDumper.represent_lines)
