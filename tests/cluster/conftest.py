"""Clusters of several nodes on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

import local_cluster
import pytest
from on_head import ROOT, OnHead
from seeds import built_operators


def _without_raysweep() -> Sequence[str]:
    """Folders of the package: this one, and the one that an editable installation leads to."""
    installed = json.loads(distribution("raysweep").read_text("direct_url.json") or "{}").get("url", "")
    folders = {ROOT / "raysweep", Path(installed.removeprefix("file://")) / "raysweep"}
    return [str(folder) for folder in folders if folder.is_dir()]


def _on_head(name: str, slots: Sequence[int]) -> Iterator[OnHead]:
    try:
        local_cluster.check_able(name)
    except local_cluster.CannotBuild as error:
        pytest.skip(str(error))
    with local_cluster.running(name, slots, hidden=_without_raysweep(), seed_home=built_operators()) as cluster:
        yield OnHead(cluster)


@pytest.fixture(scope="module")
def three_nodes(request: pytest.FixtureRequest) -> Iterator[OnHead]:
    """A head and two nodes of one slot each, which are the module's own: files run side by side."""
    yield from _on_head(request.module.__name__.removeprefix("test_")[:4], [1, 1, 1])


@pytest.fixture(scope="module")
def uneven_nodes() -> Iterator[OnHead]:
    """A head without slots, and nodes of 4 and 2."""
    yield from _on_head("uneven", [0, 4, 2])
