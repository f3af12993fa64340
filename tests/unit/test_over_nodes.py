"""Groups over several nodes: slots, code, interfaces, devices, lost nodes; all that needs no second node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from builders import make_request
from fakes import FakeLauncher
from torch import cuda

import raysweep
from raysweep.errors import ConfigError, GroupCannotStart
from raysweep.launch.attempts import run_candidate
from raysweep.launch.autopsy import with_lost_nodes
from raysweep.launch.cluster import check_capacity, describe_placement, usable_slots, wait_for_capacity
from raysweep.launch.code import code_for_nodes
from raysweep.launch.interface import interface_of
from raysweep.outcome import DEADLINE_PASSED, NODE_LOST, judge
from raysweep.trial import FailureKind, LaunchRequest, Measurement, RankFailure
from raysweep.worker.process import device_index

FOUR_AND_TWO = {"n1": 4, "n2": 2}


def _nodes(**cpus: float) -> list[dict[str, Any]]:
    return [
        {"Alive": True, "NodeID": name, "NodeManagerAddress": name, "Resources": {"CPU": count} if count else {}}
        for name, count in cpus.items()
    ]


@pytest.mark.parametrize(
    ("placement", "usable"), [("PACK", 6), ("SPREAD", 6), ("STRICT_SPREAD", 2), ("STRICT_PACK", 4)]
)
def test_uneven_nodes_are_counted_by_what_the_placement_can_use(placement: str, usable: int) -> None:
    assert usable_slots([4, 2, 0], placement) == usable


def test_a_placement_that_can_never_be_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: _nodes(n1=4, n2=2, head=0))
    asked = {"world_size": 3, "resources_per_worker": {"CPU": 1}}
    assert check_capacity(**asked) == {"n1": 4, "n2": 2, "head": 0}
    with pytest.raises(ConfigError, match="available: 2 by placement STRICT_SPREAD, of 6 slots") as caught:
        check_capacity(**asked, placement="STRICT_SPREAD")
    assert caught.value.data["nearest"] == 2


def test_a_node_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = _nodes(n3=4)[0] | {"Alive": False}
    monkeypatch.setattr(ray, "nodes", lambda: [*_nodes(n1=1), gone])
    with pytest.raises(ConfigError, match="lost nodes: n3"):
        check_capacity(world_size=2, resources_per_worker={"CPU": 1})


def test_a_cluster_that_grows_is_waited_for_with_a_countdown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [_nodes(n1=1), _nodes(n1=1), _nodes(n1=1, n2=1)]
    asked: list[Any] = []
    monkeypatch.setattr(ray, "nodes", lambda: seen.pop(0) if len(seen) > 1 else seen[0])
    monkeypatch.setattr("raysweep.launch.cluster.request_resources", lambda **given: asked.append(given["bundles"]))
    monkeypatch.setattr("raysweep.launch.cluster.LOOK_EVERY_S", 0.01)
    notes: list[str] = []
    how = {"world_size": 2, "resources_per_worker": {"CPU": 1}, "placement": "PACK", "note": notes.append}
    assert wait_for_capacity(**how, limit_s=60) == {"n1": 1, "n2": 1}
    assert notes == ["waiting for nodes: 1 of 2 slots are there (given up in 60 s)"]
    assert asked == [[{"CPU": 1}, {"CPU": 1}]]


def test_the_wait_has_a_limit_and_none_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: _nodes(n1=1))
    how = {"world_size": 2, "resources_per_worker": {"CPU": 1}, "placement": "PACK"}
    with pytest.raises(ConfigError, match="available: 1"):
        wait_for_capacity(**how, limit_s=0, note=lambda text: pytest.fail(text))


def test_where_workers_are_and_which_slots_stay_idle() -> None:
    six = ["n1"] * 4 + ["n2"] * 2
    assert describe_placement(six, FOUR_AND_TWO) == "6 workers: 4 on n1, 2 on n2; no slot is idle"
    assert describe_placement(six[1:], FOUR_AND_TWO) == "5 workers: 3 on n1, 2 on n2; idle slots: 1 on n1"


def test_nodes_are_sent_our_package_and_the_users_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = str(Path(raysweep.__file__).parent)
    assert code_for_nodes({"kind": "gpt"}) == {"py_modules": [ours]}
    model = {"kind": "factory", "factory": "mine_only.models:make", "python_path": None}
    in_a_folder = code_for_nodes(model | {"python_path": "/code"})
    assert in_a_folder == {"py_modules": [ours], "working_dir": "/code"}
    (tmp_path / "mine_only").mkdir()
    (tmp_path / "mine_only" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert code_for_nodes(model) == {"py_modules": [ours, str(tmp_path / "mine_only")]}
    for kind in ("trainer", "loop"):
        assert code_for_nodes({**model, "kind": kind, kind: model["factory"]}) == code_for_nodes(model)
    (tmp_path / "single_file.py").write_text("")
    assert code_for_nodes(model | {"factory": "single_file:make"})["py_modules"][1:] == [
        str(tmp_path / "single_file.py")
    ]


def test_what_is_installed_is_not_sent() -> None:
    model = {"kind": "factory", "factory": "torch.nn:Linear", "python_path": None}
    assert len(code_for_nodes(model)["py_modules"]) == 1
    assert len(code_for_nodes(model | {"factory": "json.decoder:JSONDecoder"})["py_modules"]) == 1


def test_the_interface_is_the_one_that_has_the_nodes_address() -> None:
    interfaces = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2", "fe80::1"], "eth1": ["192.168.0.2"]}
    assert interface_of("192.168.0.2", interfaces) == "eth1"
    assert interface_of("fe80::1", interfaces) == "eth0"
    assert interface_of("127.0.0.1", interfaces) is None
    assert interface_of("203.0.113.7", interfaces) is None


def test_deepspeed_is_told_the_device_that_ray_assigned_b44(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of CUDA_VISIBLE_DEVICES=3,1 the worker that Ray gave GPU 1 has the device of index 1, whatever its local rank."""
    from ray.air._internal.device_manager.nvidia_gpu import CUDATorchDeviceManager

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    indices = {}
    for local_rank, assigned in ((0, 1), (1, 3)):
        monkeypatch.setattr(ray, "get_gpu_ids", lambda assigned=assigned: [str(assigned)])
        (device,) = CUDATorchDeviceManager().get_devices()
        indices[local_rank] = device_index(local_rank, device.index)
    assert indices == {0: 1, 1: 0}  # no two share one, and neither is its local rank


def test_without_cuda_it_is_the_local_rank_of_the_node() -> None:
    assert device_index(1, None) == 1


RANKS = [{"node": "n1", "node_id": "a", "log_path": "0.log"}, {"node": "n2", "node_id": "b", "log_path": "1.log"}]
HANGS = [RankFailure(rank=0, node="n1", type_names=(DEADLINE_PASSED,), message="still busy at its deadline of 30 s")]


def test_a_rank_that_waits_for_a_lost_node_is_no_hang() -> None:
    outcome = judge(with_lost_nodes(HANGS, RANKS, lambda node_id: node_id == "a"))
    assert outcome.failure_kind is FailureKind.INFRASTRUCTURE
    assert outcome.reason == (
        "rank 1 on n2: NodeLost: the node does not answer: its link, its raylet or the machine is down"
    )
    assert [each.rank for each in outcome.failures] == [1, 0]


def test_a_hang_stays_a_hang_where_every_node_answers() -> None:
    assert judge(with_lost_nodes(HANGS, RANKS, lambda node_id: True)).failure_kind is FailureKind.HANG


def test_nodes_are_not_asked_on_one_node_nor_after_another_failure() -> None:
    def nobody(node_id: str) -> bool:
        raise AssertionError(node_id)

    assert with_lost_nodes(HANGS, [RANKS[0], RANKS[0]], nobody) == HANGS
    died = [RankFailure(rank=0, type_names=(NODE_LOST,), message="")]
    assert with_lost_nodes(died, RANKS, nobody) == died


class _CannotStartAgain(FakeLauncher):
    """Loses its node in the first launch; no group comes up for the second."""

    def launch(self, request: LaunchRequest) -> Measurement:
        if self.launched:
            raise GroupCannotStart(reason="2 of 3 workers were up after 600 s; lost nodes: n3")
        return super().launch(request)


def test_no_row_is_lost_where_the_second_launch_cannot_start() -> None:
    kept: list[Measurement] = []
    with pytest.raises(GroupCannotStart, match="lost nodes: n3"):
        run_candidate(_CannotStartAgain().loses_a_rank_at(1), make_request(), on_launch=kept.append)
    assert [each.failure_kind for each in kept] == [FailureKind.INFRASTRUCTURE]
