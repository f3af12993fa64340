"""Who may import what: each folder faces one outside thing."""

from __future__ import annotations

import graphlib
import sys
from collections import defaultdict

import pytest
from source_tree import PACKAGE, folder_of, imports, module_paths

OUTSIDE = {
    # simpleeval evaluates constraints between axes without giving them Python; numpy computes columns of candidates,
    # in modules that a plan loads late (test_driver.py: to import the planning modules does not load it).
    "": {"numpy", "pydantic", "simpleeval", "yaml"},
    "estimate": {"pydantic", "deepspeed", "torch"},
    "worker": {"torch", "deepspeed", "transformers", "peft"},
    "launch": {"ray", "psutil"},
    "preflight": {"ray", "psutil"},
    "search": {"ray", "optuna", "numpy", "scipy"},
    "results": {"pyarrow", "yaml"},
    "exports": {"jinja2", "yaml"},
    "page": {"jinja2", "markupsafe"},
    "submit": {"ray", "kubernetes", "pathspec", "jinja2", "yaml"},
    "api": set(),
    "cli": {"typer", "rich"},
}
"""Folder of the package -> what it may import beside the standard library."""

INSIDE = {
    "": set(),
    "estimate": {"", "worker"},
    "worker": {""},
    "launch": {""},
    # Beside Ray's own words: the folder where operators are built (worker), and the file systems of results.
    "preflight": {"", "launch", "results", "worker"},
    "search": {"", "estimate", "launch", "preflight", "results"},
    "results": {""},
    "exports": {"", "results"},
    "page": {"", "results"},
    "submit": {"", "results"},
    "api": {"", "estimate", "search", "results"},
    "cli": {"", "estimate", "preflight", "search", "results", "exports", "page", "submit"},
}
"""Folder of the package -> the other folders that it may import; empty is the top level."""

DOORS = {
    "raysweep.cli.main": {f"raysweep.cli.{verb}" for verb in ("init", "plan", "tracing", "memory", "run", "check")},
    "raysweep.cli.result_verbs": {
        f"raysweep.cli.{verb}" for verb in ("show", "export", "report", "compare", "predict")
    },
    "raysweep.cli.job_verbs": {"raysweep.cli.submit", "raysweep.cli.jobs"},
    "raysweep.plan": {"raysweep.plan_rows", "raysweep.space_families"},
    "raysweep.submit.places": {f"raysweep.submit.{place}" for place in ("ray_jobs", "slurm", "kuberay")},
    "raysweep.submit.kuberay": {"raysweep.submit.kube_api"},
    "raysweep.search.opened_launcher": {"raysweep.launch.in_process"},
    "raysweep.search.trackers": {"ray.air.integrations.mlflow", "ray.air.integrations.wandb"},
    "raysweep.search.searchers": {f"raysweep.search.{module}" for module in ("guided", "lean", "optuna_searcher")},
    "raysweep.launch.worker_loop": {f"raysweep.worker.{module}" for module in ("loop", "micro_benchmark", "process")},
    "raysweep.launch.train_ray": {
        "raysweep.launch.worker_loop",
        *(f"raysweep.worker.{module}" for module in ("device", "engine", "meter", "model", "own_training")),
    },
    "raysweep.launch.devices": {"torch"},
    "raysweep.preflight.probe": {"torch", "torch.distributed"},
    "raysweep.estimate.ds_schema": {"deepspeed", "deepspeed.runtime.config"},
    "raysweep.estimate.fake_world": {"deepspeed"},
    "raysweep.worker.process": {"deepspeed", "raysweep.worker.operators"},
    "raysweep.worker.model": {"raysweep.worker.hf_model"},
    "raysweep.worker.hf_model": {"raysweep.worker.lora"},
    "raysweep.worker.user_loops": {"raysweep.worker.trainer_loop", "raysweep.worker.hf_model"},
}
"""Module -> what it imports inside a function, because it must not be loaded before; nobody else may do so."""

IN_PROCESS = "raysweep.launch.in_process"
REAPER = "raysweep.launch.reaper"
"""The one module of `launch` that is driver and worker at once; it is loaded through a door only."""


def _outside(imported: str) -> str:
    """The package that an import names; empty for the standard library and for our own."""
    top = imported.partition(".")[0]
    return "" if top in sys.stdlib_module_names or top in (PACKAGE, "__future__") else top


BESIDE = {
    "launch": {IN_PROCESS: {"torch"}, "raysweep.launch.devices": {"torch"}, "raysweep.launch.train_ray": {"yaml"}},
    # On the node, in the one function that sums over the nodes.
    "preflight": {"raysweep.preflight.probe": {"torch"}},
}
"""Folder -> what single modules of it import beside what the folder faces."""

STARTED = {"raysweep.estimate.model_facts", "raysweep.estimate.trace_jobs"}
"""Modules of `estimate` that load torch and the worker's modules; they are started and never imported."""

IN_A_SUBPROCESS = STARTED | {
    f"raysweep.estimate.fake_{part}" for part in ("activations", "engine", "mode", "operators", "world")
}
"""Those, and the modules that only the tracing subprocess loads: nobody else may import them."""


@pytest.mark.parametrize("folder", OUTSIDE)
def test_a_folder_imports_only_the_outside_thing_that_it_faces(folder: str) -> None:
    found = defaultdict(set)
    for each in imports():
        if folder_of(each.importer) == folder and _outside(each.imported) not in ({""} | OUTSIDE[folder]):
            found[each.importer].add(_outside(each.imported))
    assert found == BESIDE.get(folder, {})


@pytest.mark.parametrize("folder", INSIDE)
def test_a_folder_imports_only_folders_below_it(folder: str) -> None:
    found = {
        (each.importer, folder_of(each.imported))
        for each in imports()
        if each.imported in module_paths() and folder_of(each.importer) == folder
        if folder_of(each.imported) not in INSIDE[folder] | {folder}
    }
    at_work = {
        (module, "worker")
        for module in (IN_PROCESS, REAPER, "raysweep.launch.worker_loop", "raysweep.launch.train_ray")
    }
    assert found == (at_work if folder == "launch" else set())


def test_every_folder_has_its_rule() -> None:
    assert {folder_of(module) for module in module_paths()} == set(OUTSIDE) == set(INSIDE)


def test_late_imports_are_the_named_doors() -> None:
    late: dict[str, set[str]] = defaultdict(set)
    for each in imports():
        if each.is_late:
            late[each.importer].add(each.imported)
    assert late == DOORS


def test_deepspeed_is_asked_at_module_level_by_the_worker_only() -> None:
    early = {each.importer for each in imports() if _outside(each.imported) == "deepspeed" and not each.is_late}
    assert {folder_of(module) for module in early} == {"worker"}


def test_modules_of_a_subprocess_are_imported_by_nobody() -> None:
    heavy = {
        each.importer
        for each in imports()
        if folder_of(each.importer) == "estimate" and not each.is_late
        if _outside(each.imported) == "torch" or each.imported.startswith("raysweep.worker.")
    }
    assert heavy == IN_A_SUBPROCESS
    assert [each for each in imports() if each.imported in STARTED] == []
    assert [each for each in imports() if each.imported in heavy and each.importer not in heavy] == []


def test_no_two_modules_import_each_other() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for each in imports():
        if each.imported in module_paths():
            graph[each.importer].add(each.imported)
    graphlib.TopologicalSorter(graph).prepare()
