"""The launcher that a sweep file names, up and running for the length of a block."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.concurrent_groups import concurrent_groups
from raysweep.launch.launcher import Launcher
from raysweep.launch.warm_group import GroupSpec
from raysweep.search.tuner import LauncherFactory
from raysweep.sweep_file import Sweep


@contextmanager
def opened_launcher(
    sweep: Sweep, *, log_folder: str, places: Sequence[Sequence[str]], note: Callable[[str], None]
) -> Iterator[tuple[Launcher, Sequence[LauncherFactory]]]:
    """The launcher, and for each worker group how a trial's process gets its own.

    Args:
        sweep: the sweep file, read.
        log_folder: where the ranks write.
        places: addresses of the nodes of each worker group; none of a group that may be anywhere.
        note: told what earlier sweeps had left on the nodes.
    """
    if sweep.file.launcher == "in_process":
        # Loaded on demand: it brings torch and DeepSpeed into this process, which no other launcher does.
        from raysweep.launch.in_process import InProcessLauncher

        launcher = InProcessLauncher()
        yield launcher, [InProcessLauncher]
        launcher.close("sweep ended")
        return
    sweep_id = f"{sweep.sweep_sha256[:8]}-{uuid.uuid4().hex[:8]}"
    specs = [
        GroupSpec.of_sweep(sweep, sweep_id=f"{sweep_id}-{number}", log_folder=log_folder, nodes=nodes)
        for number, nodes in enumerate(places)
    ]
    with concurrent_groups(specs) as (groups, tidied):
        for line in tidied:
            note(line)
        yield groups, [partial(BrokerClient.connect, spec.sweep_id, fresh=spec.fresh) for spec in specs]
