"""What the preflight finds wrong with nodes and links: node, value and remedy."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysweep.errors import PreflightError
from raysweep.preflight.finding import Finding, Link, NodeFacts, Report
from raysweep.preflight.judge import Needs, format_rate, judge_links, judge_nodes
from raysweep.preflight.links import MOST_NODES_IN_ALL_PAIRS, LinkServer, measure_link, rounds, unreachable
from raysweep.preflight.look import reached_from
from raysweep.preflight.node_facts import data_files, gather, memory_limit_bytes, read_devices
from raysweep.preflight.results_uri import check_results
from raysweep.units import GIB, MIB

VERSIONS = {
    "python": "3.11.7",
    "ray": "2.60.0",
    "torch": "2.13.0",
    "deepspeed": "0.19.8",
    "cuda": "none",
    "nccl": "none",
}
NEEDS = Needs(device="cpu", reference="n1", slots={"n1": 1, "n2": 2}, budget_bytes=64 * MIB)
ON_GPUS = replace(NEEDS, device="cuda")
DEVICE = {"index": 0, "name": "H200", "total_bytes": 140 * GIB, "used_bytes": 0, "driver": "570"}


def _node(address: str = "n2", **changes: Any) -> NodeFacts:
    plain = {
        "address": address,
        "host": address,
        "versions": VERSIONS,
        "memory_bytes": 16 * GIB,
        "available_bytes": 12 * GIB,
        "free_bytes": {"/tmp": 9 * GIB, "/dev/shm": 4 * GIB},
        "compiler": "/usr/bin/c++",
    }
    return NodeFacts(**{**plain, **changes})


def _found(second: NodeFacts, needs: Needs = NEEDS) -> list[Finding]:
    return judge_nodes([_node("n1", devices=[DEVICE] if needs.device == "cuda" else ()), second], needs)


def test_two_nodes_alike_are_well() -> None:
    assert _found(_node()) == []


@pytest.mark.parametrize("package", ["python", "ray", "torch", "deepspeed", "nccl"])
def test_another_version_is_named_with_both_nodes_and_the_remedy(package: str) -> None:
    (finding,) = _found(_node(versions=VERSIONS | {package: "0.0.1"}))
    wanted = VERSIONS[package]
    assert finding.is_fatal
    assert finding.line() == (
        f"n2: {package} is 0.0.1, and {wanted} on n1, where the sweep is started; "
        f"install {package} {wanted} on every node"
    )


def test_a_package_that_lacks_everywhere_is_found_too() -> None:
    versions = VERSIONS | {"transformers": "not installed"}
    found = judge_nodes([_node("n1", versions=versions), _node(versions=versions)], NEEDS)
    assert [each.problem for each in found] == ["transformers is not installed"] * 2


def test_a_node_without_slots_is_not_judged_and_yet_the_reference() -> None:
    needs = replace(NEEDS, slots={"n1": 0, "n2": 2})
    head = _node("n1", compiler="", versions=VERSIONS | {"torch": "2.12.0"})
    (finding,) = judge_nodes([head, _node()], needs)
    assert finding.place == "n2" and "2.12.0 on n1" in finding.problem


def test_a_gpu_that_torch_cannot_use() -> None:
    found = _found(_node(devices=[DEVICE, DEVICE]), ON_GPUS)
    assert {each.problem for each in found} == {"workers ask for a GPU, and torch is a build without CUDA"}


def test_a_device_that_others_use_is_told_and_does_not_stop_the_sweep() -> None:
    on_cuda = VERSIONS | {"cuda": "12.8", "nccl": "2.27.5"}
    busy = DEVICE | {"index": 1, "used_bytes": 20 * GIB}
    first = _node("n1", versions=on_cuda, devices=[DEVICE])
    (finding,) = judge_nodes([first, _node(versions=on_cuda, devices=[DEVICE, busy])], ON_GPUS)
    assert not finding.is_fatal
    assert finding.problem == "others use 20.0 GiB of 140.0 GiB of device 1"


def test_unlike_devices_are_told() -> None:
    on_cuda = VERSIONS | {"cuda": "12.8"}
    small = DEVICE | {"name": "A100", "total_bytes": 80 * GIB}
    nodes = [_node("n1", versions=on_cuda, devices=[DEVICE]), _node(versions=on_cuda, devices=[small, small])]
    (finding,) = judge_nodes(nodes, ON_GPUS)
    assert "H200 of 140.0 GiB on n1" in finding.problem and "A100 of 80.0 GiB on n2" in finding.problem


def test_host_memory_counts_every_worker_of_the_node_with_what_it_offloads() -> None:
    needs = replace(NEEDS, offloaded_bytes=8 * GIB)
    (finding,) = _found(_node(), needs)
    assert finding.place == "n2" and finding.is_fatal  # n1 holds one worker, n2 two
    assert "2 workers may take 17.1 GiB of host memory, 8.56 GiB each; 12.0 GiB of 16.0 GiB is free" in finding.problem
    (finding,) = _found(_node(memory_bytes=32 * GIB), needs)
    assert not finding.is_fatal  # others may let go of it


@pytest.mark.parametrize(
    ("folder", "free_bytes", "is_fatal"),
    [("/tmp", 150 * MIB, True), ("/tmp", 900 * MIB, False), ("/dev/shm", 100 * MIB, True)],
)
def test_free_space(folder: str, free_bytes: int, is_fatal: bool) -> None:
    (finding,) = _found(_node(free_bytes={folder: free_bytes}))
    assert (finding.place, finding.is_fatal) == ("n2", is_fatal) and folder in finding.problem


def test_a_compiler_or_the_built_operator_is_needed_on_cpu() -> None:
    (finding,) = _found(_node(compiler=""))
    assert "no C++ compiler" in finding.problem
    assert _found(_node(compiler="", operator_is_built=True)) == []


def test_text_that_a_node_does_not_see(tmp_path: Path) -> None:
    (finding,) = _found(_node(data_files=0))
    assert finding.problem == "data.path matches no file on this node"
    (tmp_path / "a.txt").write_text("a")
    assert data_files({"kind": "text", "path": str(tmp_path)}) == 1
    assert data_files({"kind": "text", "path": f"{tmp_path}/*.md"}) == 0
    assert data_files({"kind": "text", "path": "stdlib"}) is None and data_files({"kind": "synthetic"}) is None


def test_this_machine_says_what_it_is() -> None:
    facts = gather(address="here", data={"kind": "synthetic"}, extra_packages=("no-such-package",))
    assert facts.versions["torch"][0].isdigit() and facts.versions["no-such-package"] == "not installed"
    assert 0 < facts.available_bytes <= facts.memory_bytes and facts.free_bytes


def test_a_containers_limit_counts_where_it_is_less() -> None:
    assert memory_limit_bytes(100, iter(["max"])) == 100
    assert memory_limit_bytes(100, iter(["60", "9223372036854771712"])) == 60


def test_devices_as_nvidia_smi_prints_them() -> None:
    printed = "0, NVIDIA H200, 143771, 4, 570.1\n1, NVIDIA H200 MIG, [N/A], [N/A], 570.1\n"
    (device,) = read_devices(printed)
    assert device["name"] == "NVIDIA H200" and device["total_bytes"] == 143771 * MIB


def _link(**changes: Any) -> Link:
    return Link(**{"first": "n1", "second": "n2", "round_trip_s": 1e-4, "bytes_per_s": 1e9, **changes})


NO_VARIABLES: dict[str, dict[str, str]] = {"n1": {}, "n2": {}, "n3": {}}


def test_a_broken_link_names_pair_address_and_the_variables_in_force_b62() -> None:
    link = _link(bytes_per_s=None, error="n2:4711 cannot be reached from n1: timed out")
    (finding,) = judge_links([link], NEEDS, {"n1": {"NCCL_SOCKET_IFNAME": "lo"}, "n2": {}})
    assert finding.is_fatal and finding.place == "n1 - n2"
    assert "n2:4711" in finding.problem and "n1: NCCL_SOCKET_IFNAME=lo" in finding.problem


def test_a_slow_link_is_named_with_its_bandwidth_and_what_it_costs() -> None:
    needs = replace(NEEDS, sent_bytes_per_step=25_000_000)
    (finding,) = judge_links([_link(bytes_per_s=2.5e6)], needs, NO_VARIABLES)
    assert not finding.is_fatal and finding.place == "n1 - n2"
    assert "slow link: 20.0 Mbit/s" in finding.problem and "which takes 10.0 s on it" in finding.problem


def test_a_link_far_below_the_others_is_told_also_where_it_is_fast() -> None:
    links = [_link(), _link(second="n3"), _link(first="n2", second="n3", bytes_per_s=2e8)]
    (finding,) = judge_links(links, NEEDS, NO_VARIABLES)
    assert finding.place == "n2 - n3" and "1.6 Gbit/s (median of all: 8.0 Gbit/s)" in finding.problem


def test_rates_as_links_are_named() -> None:
    assert (format_rate(2.5e6), format_rate(1.25e9)) == ("20.0 Mbit/s", "10.0 Gbit/s")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, MOST_NODES_IN_ALL_PAIRS])
def test_every_pair_is_measured_once_and_no_node_twice_in_a_round(count: int) -> None:
    nodes = [f"n{index}" for index in range(count)]
    found = rounds(nodes)
    pairs = [frozenset(pair) for each in found for pair in each]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert all(len({node for pair in each for node in pair}) == 2 * len(each) for each in found)


@pytest.mark.parametrize("count", [17, 18])
def test_many_nodes_are_measured_with_their_neighbours_only(count: int) -> None:
    nodes = [f"n{index}" for index in range(count)]
    found = rounds(nodes)
    assert sum(map(len, found)) == count and len(found) <= 3
    assert all(len({node for pair in each for node in pair}) == 2 * len(each) for each in found)


def test_a_link_is_really_measured() -> None:
    server = LinkServer("127.0.0.1")
    round_trip_s, bytes_per_s = measure_link("127.0.0.1", server.port)
    server.close()
    assert round_trip_s > 0 and bytes_per_s > 1e6


def test_several_at_once_do_not_mix_up_their_bytes() -> None:
    server = LinkServer("127.0.0.1")
    rates: list[float] = []
    threads = [threading.Thread(target=lambda: rates.append(measure_link("127.0.0.1", server.port)[1])) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.close()
    assert len(rates) == 2 and min(rates) > 1e6


def test_a_port_where_nobody_listens_has_a_reason() -> None:
    server = LinkServer("127.0.0.1")
    assert unreachable("127.0.0.1", server.port) == ""
    assert unreachable("127.0.0.1", 1) == "Connection refused"
    server.close()


def test_of_two_raylets_of_a_node_that_came_back_the_one_that_answers_counts() -> None:
    server = LinkServer("127.0.0.1")
    nodes = [
        {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port, "NodeID": name}
        for name, port in (("new", server.port), ("old", 1))
    ]
    reached, cut_off = reached_from("here", nodes)
    assert reached["127.0.0.1"]["NodeID"] == "new" and cut_off == []
    reached, (link,) = reached_from("here", nodes[1:])
    assert reached == {} and link.pair == "here - 127.0.0.1" and "Connection refused" in link.error
    server.close()


def test_results_are_written_and_read_and_nothing_stays(tmp_path: Path) -> None:
    assert check_results(f"file://{tmp_path}/new") == []
    assert check_results(str(tmp_path / "not" / "yet")) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [] and not (tmp_path / "not").exists()


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = check_results(f"file://{tmp_path}/file/below")
    assert finding.place == "results" and finding.is_fatal
    (finding,) = check_results("s4://bucket/x")
    assert "s4" in finding.problem


def test_the_report_refuses_with_a_line_for_each_failure_and_code_4() -> None:
    fatal = Finding(place="n2", problem="ray is 2.59.0", remedy="install ray 2.60.0")
    told = replace(fatal, is_fatal=False)
    Report(nodes=[], slots={}, findings=[told]).refuse()
    with pytest.raises(PreflightError) as caught:
        Report(nodes=[], slots={}, findings=[told, fatal, fatal]).refuse()
    assert caught.value.exit_code == 4
    assert str(caught.value).count("\n  n2: ray is 2.59.0; install ray 2.60.0") == 2
