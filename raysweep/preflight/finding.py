"""What the preflight found: facts of each node, the links between them, and what is wrong with either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raysweep.errors import PreflightError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or slow."""

    place: str
    """The node or the pair of nodes, as Ray names them."""
    problem: str
    """With the value that was found."""
    remedy: str
    is_fatal: bool = True
    """Whether the sweep cannot go well; else it is told, and the sweep goes on."""

    def line(self) -> str:
        """`10.0.0.2: torch 2.12.0 is installed, ...; install torch 2.13.0 there`."""
        return f"{self.place}: {self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself."""

    address: str
    host: str
    versions: Mapping[str, str]
    """Package -> version, or `not installed`; `cuda` is what torch was built for, `none` for a CPU build."""
    devices: Sequence[Mapping[str, str | int]] = ()
    """NVIDIA devices: index, name, total_bytes, used_bytes, driver."""
    memory_bytes: int
    """Of the host, or of the container where that is less."""
    available_bytes: int
    free_bytes: Mapping[str, int]
    """Folder -> bytes left: temporary files, the home with the operators, and shared memory."""
    compiler: str = ""
    """Path of a C++ compiler; empty where there is none."""
    operator_is_built: bool = False
    """Whether DeepSpeed's compiled collective lies ready."""
    data_files: int | None = None
    """Files of the sweep's text that this node sees; None where the data is not in files."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in force that steer gloo, NCCL or proxies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A pair of nodes: one TCP stream from the first to the second, over the addresses that Ray has for them."""

    first: str
    second: str
    round_trip_s: float | None = None
    bytes_per_s: float | None = None
    error: str = ""
    """Why there are no figures."""

    @property
    def pair(self) -> str:
        """Both addresses."""
        return f"{self.first} - {self.second}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that the preflight saw."""

    nodes: Sequence[NodeFacts]
    slots: Mapping[str, int]
    """Address -> workers that the node can hold."""
    links: Sequence[Link] = ()
    all_reduce_s: float | None = None
    """Seconds until every node had the sum of all; None where it was not tried, or failed."""
    findings: Sequence[Finding] = ()

    @property
    def fatal(self) -> list[Finding]:
        """What stands in the way."""
        return [finding for finding in self.findings if finding.is_fatal]

    def refuse(self) -> None:
        """End here where something stands in the way.

        Raises:
            PreflightError: with a line for each.
        """
        if self.fatal:
            lines = "".join(f"\n  {finding.line()}" for finding in self.fatal)
            raise PreflightError(message=f"not ready, {len(self.fatal)} of the checks failed:{lines}")
