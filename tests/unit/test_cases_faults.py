"""Mistakes that other tools have made when something goes wrong, each by the kind of the case.

Those that need real worker groups are in `tests/ray` and `tests/chaos`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_candidate, make_measurement, make_request, write_sweep
from fakes import FakeLauncher
from results_builders import completed, sweep

from raysweep.errors import StorageError
from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.devices import unsupported_precision
from raysweep.plan import make_plan
from raysweep.results import journal as journal_module
from raysweep.results.confirm import demoted
from raysweep.results.finalists import finalists
from raysweep.results.journal import Journal, read_journal
from raysweep.results.records import derive_records
from raysweep.search.confirm import confirm
from raysweep.serde import to_dict
from raysweep.sweep_file import load_sweep
from raysweep.trial import LaunchRequest, Measurement, PlanRow, SkipRule, TrialStatus
from raysweep.units import MIB
from raysweep.worker.build_folder import build_folder, turn_to_build


def test_a_precision_that_the_device_lacks_skips_every_candidate_b30(tmp_path: Path) -> None:
    lacks = "precision bf16 is not supported on Tesla V100-SXM2-16GB"
    plan = make_plan(load_sweep(write_sweep(tmp_path)), unsupported_precision=lacks)
    legal = [row for row in plan.rows if row.skip_rule is not SkipRule.NO_LEGAL_BATCH]
    assert legal and {(row.status, row.skip_rule, row.reason) for row in legal} == {
        (TrialStatus.SKIPPED, SkipRule.PRECISION_UNSUPPORTED, lacks)
    }
    assert plan.admitted == []


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_a_cpu_is_asked_and_not_assumed_b30(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"device": "cpu", "precision": precision, "resources_per_worker": {"CPU": 1.0}}
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: True)
    assert unsupported_precision(**asked) == ""

    def refuses(*given: Any, **named: Any) -> None:
        raise RuntimeError('"addmm_impl_cpu_" not implemented for this type')

    monkeypatch.setattr(torch, "ones", refuses)
    assert unsupported_precision(**asked).startswith(f"precision {precision} is not supported on this CPU: ")


def test_fp16_is_refused_where_deepspeed_would_refuse_it_b30(monkeypatch: pytest.MonkeyPatch) -> None:
    from raysweep.launch import devices

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla P100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 0))
    assert "AVX512-FP16; bf16 and fp32 run" in devices._tried("fp16", "cpu")
    assert devices._tried("fp16", "cuda").endswith("asks for compute capability 7.0, it has 6.0")
    monkeypatch.setenv("DS_ALLOW_DEPRECATED_FP16", "1")
    assert not devices._fp16_lacks("cuda")


def test_deepspeed_and_the_plan_agree_on_fp16_on_this_cpu_b30() -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    lacks = unsupported_precision(device="cpu", precision="fp16", resources_per_worker={"CPU": 1.0})
    assert bool(lacks) is not bool(CPU_Accelerator().is_fp16_supported())


def test_a_gpu_that_only_emulates_bf16_lacks_it_b30(monkeypatch: pytest.MonkeyPatch) -> None:
    from raysweep.launch import devices

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert devices._tried("bf16", "cuda") == "precision bf16 is not supported on Tesla V100"


class _FailsLate(FakeLauncher):
    """The candidate with the larger micro-batch fits in the search and not in the longer run of the confirmation."""

    def launch(self, request: LaunchRequest) -> Measurement:
        measurement = super().launch(request)
        late = request.round == 2 and request.candidate.micro_batch_size_per_gpu == 4
        if not late:
            return measurement
        return replace(measurement, status=TrialStatus.OOM, figures=None, reason="rank 0: OutOfMemory: at step 12")


def test_a_winner_that_fails_in_the_confirmation_is_demoted_and_the_next_is_confirmed_b36() -> None:
    candidates = {
        size: make_candidate(micro_batch_size_per_gpu=size, gradient_accumulation_steps=1) for size in (1, 2, 4)
    }
    searched = [
        completed(each.candidate_id, samples_per_s=100.0 * size, peak_memory_bytes=MIB)
        for size, each in candidates.items()
    ]
    rows = tuple(PlanRow(candidate=each, world_size=2, global_batch_size=8) for each in candidates.values())
    start = replace(sweep(), plan_rows=rows, memory_budget_bytes=64 * MIB)
    first = finalists(derive_records(start, measurements=searched))
    assert first[0] == candidates[4].candidate_id
    by_id = {each.candidate_id: make_request(candidate=each) for each in candidates.values()}
    measured = confirm(
        _FailsLate(), [by_id[each] for each in first], on_launching=lambda *_: None, on_measured=lambda _: None
    )
    lost = demoted([*searched, *measured])
    assert lost == {candidates[4].candidate_id}
    assert finalists(derive_records(start, measurements=searched), excluded=lost)[0] == candidates[2].candidate_id


def test_the_lock_of_a_killed_build_is_found_and_named_b63(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lock = build_folder() / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir()
    lock.touch()
    with turn_to_build(build_folder()) as stale:
        assert stale == [lock] and not lock.exists()
        with pytest.raises(BlockingIOError), turn_to_build(build_folder(), wait=False):
            pytest.fail("two builds at once")
    with turn_to_build(build_folder()) as stale:
        assert stale == []


@pytest.mark.parametrize(("left_behind_bytes", "recycled"), [(8 * MIB, 0), (8 * MIB + 1, 1)])
def test_a_group_in_which_memory_stays_behind_is_recycled_b42(left_behind_bytes: int, recycled: int) -> None:
    reasons: list[str] = []

    class Client(BrokerClient):
        def recycle(self, reason: str) -> None:
            reasons.append(reason)

    client = Client(None, sweep_id="s", fresh=False)
    client.keep_house(make_measurement(left_behind_bytes=left_behind_bytes))
    assert len(reasons) == recycled


def test_a_full_disk_ends_in_one_message_and_keeps_every_finished_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal.open(path) as journal:
        journal.append("measurement", to_dict(completed("a")))

        def half(file: Any, content: bytes) -> None:
            file.write(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as full:
            full.setattr(journal_module, "_write_all", half)
            with pytest.raises(StorageError, match=r"journal\.jsonl cannot be written: No space left on device"):
                journal.append("measurement", to_dict(completed("b")))
        assert [each.candidate_id for each in read_journal(path).measurements] == ["a"]
        journal.append("measurement", to_dict(completed("c")))
    assert [each.candidate_id for each in read_journal(path).measurements] == ["a", "c"]
