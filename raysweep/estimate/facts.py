"""Puts a model's facts into a sweep: from a cache, or from a subprocess that builds the model on the meta device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from raysweep.activations import ActivationProfile
from raysweep.errors import ConfigError
from raysweep.estimate.facts_cache import FactsCache
from raysweep.model_facts import ModelFacts, check_text, describe, shape_of
from raysweep.model_schema import FUNCTION_KINDS, LOOP_KINDS
from raysweep.serde import from_dict, to_dict
from raysweep.sweep_file import Sweep
from raysweep.workload import Workload

BUILD_TIMEOUT_S = 300

ANSWERS = ('{"facts"', '{"error"')
"""How an answer of the subprocess begins."""

COUNTED_KINDS = ("hf", *FUNCTION_KINDS)
"""Kinds of model whose shape does not follow from the sweep file alone."""


def with_facts(sweep: Sweep, *, note: Callable[[str], None]) -> Sweep:
    """The sweep with the shape of its model, where it is not known from the file; else the sweep as it is.

    Without torch the shape stays unknown. Where the model has no block list, only the candidates without activation
    checkpointing are left: the others would be the same ones again under another name.

    Args:
        sweep: the sweep file, read.
        note: told of a step that takes seconds, as it begins.

    Raises:
        ConfigError: when the model cannot be built, or cannot take the sweep's samples; of a loop neither is one.
    """
    if sweep.workload.model["kind"] not in COUNTED_KINDS:
        return sweep
    try:
        facts = facts_of(sweep.workload.model, note=note, workload=sweep.workload)
    except ConfigError as error:
        if sweep.workload.model["kind"] not in LOOP_KINDS:
            raise
        # A loop need not run here, away from its workers; they tell what is wrong with it.
        unknown = f"the parameters are not known before it runs, so nothing is pruned: {error}"
        return replace(sweep, notes=(*sweep.notes, unknown))
    if facts is None:
        return sweep
    if sweep.workload.model["kind"] == "hf" and facts.tokens_per_sample is None:
        check_text(sweep.workload, positions=facts.positions, vocab_size=facts.vocab_size)
    space, notes = sweep.space, [*sweep.notes, describe(facts)]
    if facts.activations is None:
        notes.append(_about_activations(facts))
    if not facts.block_lists and any(space.activation_checkpoint_interval):
        space = replace(space, activation_checkpoint_interval=(0,))
        notes.append("activation checkpoint axis disabled: no blocks found (model.block_lists names them)")
    by_attention, lacks = _by_attention(sweep, note=note)
    shape = replace(shape_of(facts), activations_by_attention=by_attention)
    workload = replace(sweep.workload, shape=shape)
    return replace(sweep, workload=workload, space=space, notes=(*notes, *lacks))


def _by_attention(sweep: Sweep, *, note: Callable[[str], None]) -> tuple[dict[str, ActivationProfile], list[str]]:
    """Activations with each attention on the axis, as far as they can be measured, and a sentence for each other."""
    found, lacks = {}, []
    for attention in dict.fromkeys(each for each in sweep.space.attn_implementation if each is not None):
        section = {**sweep.workload.model, "attn_implementation": attention}
        facts = facts_of(section, note=note, workload=replace(sweep.workload, model=section))
        if facts is not None and facts.activations is not None:
            found[attention] = facts.activations
        elif facts is not None:
            lacks.append(f"{attention} attention: {_about_activations(facts)}")
    return found, lacks


def _about_activations(facts: ModelFacts) -> str:
    """What stands in for activations that were not measured."""
    why = f" ({facts.unmeasured})" if facts.unmeasured else ""
    if facts.hidden is None:
        return f"activations unknown for this model{why}: predictions hold model states and buckets only"
    return f"activations are taken to be those of the built-in GPT, with a wide band: they were not measured{why}"


def facts_of(
    section: Mapping[str, Any], *, note: Callable[[str], None], workload: Workload | None = None
) -> ModelFacts | None:
    """The facts of a model section; None where torch is not installed.

    Args:
        section: the workload's model section, `kind` and its fields.
        note: told before a model is built.
        workload: whose activations are measured, too; None leaves them out.

    Raises:
        ConfigError: with the model's own last error, when it cannot be built.
    """
    if find_spec("torch") is None:
        return None
    cache = FactsCache.of(section, weighed=workload)
    facts = cache.read()
    if facts is None:
        note("building the model once on the meta device to count its parameters ...")
        facts = _build(section, workload)
        cache.write(facts)
    return facts


def _build(section: Mapping[str, Any], workload: Workload | None) -> ModelFacts:
    asked = {"section": dict(section), "workload": None if workload is None else to_dict(replace(workload, shape=None))}
    try:
        process = subprocess.run(
            [sys.executable, "-m", "raysweep.estimate.model_facts"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
            # Its modules bring DeepSpeed along, which would otherwise look for a device.
            env=os.environ | {"DS_ACCELERATOR": "cpu"},
        )
        printed, errors, code = process.stdout, process.stderr, process.returncode
    except subprocess.TimeoutExpired as expired:
        # What was captured so far is bytes, whatever was asked for (bpo-31935).
        printed, errors, code = (expired.stdout or b"").decode(), "", None
    answer = _last_answer(printed)
    if answer is None:
        last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
        late = f"not built within {BUILD_TIMEOUT_S} s"
        raise _cannot_be_built(section, late if code is None else f"cannot be built: {last}")
    if "error" in answer:
        raise ConfigError(**answer["error"])
    facts = from_dict(ModelFacts, answer["facts"])
    if workload is not None and facts.activations is None and not facts.unmeasured:
        reason = f"not done within {BUILD_TIMEOUT_S} s" if code is None else f"the process ended with exit code {code}"
        return replace(facts, unmeasured=reason)
    return facts


def _last_answer(printed: str) -> dict[str, Any] | None:
    """The last line that is an answer; the user's code may print, too."""
    for line in reversed(printed.splitlines()):
        if line.startswith(ANSWERS):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return None


def _cannot_be_built(section: Mapping[str, Any], rule: str) -> ConfigError:
    return ConfigError(key="model", value=section["kind"], rule=rule)
