"""What the preflight sees of three nodes and of their links; and uneven nodes behind a head without slots."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from on_head import THREE_WORKERS, OnHead

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ONE_CANDIDATE = {"zero_stage": [2], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [1]}
LISTEN = "import socket, time; held = socket.create_server(('0.0.0.0', 29500)); time.sleep(600)"


@pytest.fixture(scope="module", autouse=True)
def port_29500_is_in_use(three_nodes: OnHead) -> Iterator[None]:
    """On every node: torch's and DeepSpeed's own default (B60)."""
    command = [sys.executable, "-c", LISTEN]
    holders = [subprocess.Popen(node.command(command)) for node in three_nodes.cluster.nodes]
    yield
    for holder in holders:
        holder.kill()


def test_the_preflight_sees_every_node_link_and_a_sum(three_nodes: OnHead, tmp_path: Path) -> None:
    exit_code, output = three_nodes.run(
        "check", three_nodes.write_sweep("well", **THREE_WORKERS), output=tmp_path / "out"
    )
    assert exit_code == 0, output
    first, second, third = three_nodes.addresses
    assert all(
        f"{address} ({three_nodes.cluster.name}-{index}): 1 slots" in output
        for index, address in enumerate(three_nodes.addresses)
    )
    for pair in ((first, second), (first, third), (second, third)):
        assert re.search(rf"({pair[0]} - {pair[1]}|{pair[1]} - {pair[0]}): [\d.]+ [MG]bit/s, round trip", output), (
            output
        )
    assert "A sum over the nodes took" in output


def test_a_link_at_20_mbit_is_named_with_its_bandwidth(three_nodes: OnHead, tmp_path: Path) -> None:
    three_nodes.cluster.limit_rate(2, 20)
    try:
        exit_code, output = three_nodes.run(
            "check", three_nodes.write_sweep("slow", **THREE_WORKERS), output=tmp_path / "out"
        )
    finally:
        three_nodes.cluster.lift_rate(2)
    slow = re.findall(r"^  (\S+) - (\S+): slow link: ([\d.]+) Mbit/s", output, re.MULTILINE)
    third = three_nodes.addresses[2]
    assert exit_code == 0 and len(slow) == 2, output
    assert all(third in (one, other) for one, other, _ in slow)
    assert all(5 < float(rate) < 30 for _, _, rate in slow)


def test_two_nodes_that_cannot_reach_each_other_are_named_b62(three_nodes: OnHead, tmp_path: Path) -> None:
    three_nodes.cluster.set_pair(1, 2, up=False)
    try:
        exit_code, output = three_nodes.run(
            "check", three_nodes.write_sweep("cut", **THREE_WORKERS), output=tmp_path / "out"
        )
    finally:
        three_nodes.cluster.set_pair(1, 2, up=True)
    _, second, third = three_nodes.addresses
    assert exit_code == 4, output
    assert re.search(rf"({second} - {third}|{third} - {second}): no connection: \S+:\d+ cannot be reached", output)
    assert "in force: " in output and "Traceback" not in output


def test_a_link_that_goes_down_fails_the_sweep_before_it_begins(three_nodes: OnHead, tmp_path: Path) -> None:
    path, began_s = three_nodes.write_sweep("down", **THREE_WORKERS), time.monotonic()
    process = three_nodes.start("run", path, output=tmp_path / "out")
    time.sleep(2)  # Python starts; Ray is not joined yet
    three_nodes.cluster.set_link(2, up=False)
    try:
        exit_code = process.wait(120)
        print(f"told after {time.monotonic() - began_s:.1f} s, the start of Python included")
    finally:
        three_nodes.cluster.set_link(2, up=True)
        three_nodes.restart_node(2, 1)  # Ray may have given it up
    first, _, third = three_nodes.addresses
    output = (tmp_path / "out").read_text()
    # On a slow machine Ray finds the loss (15 s) before the driver has started.
    named = f"{first} - {third}: no connection: {third}:" if exit_code == 4 else f"lost nodes: {third}"
    assert exit_code in (2, 4) and named in output, output
    assert not three_nodes.results("down").exists()


def test_six_workers_use_four_and_two_slots_and_the_head_none(uneven_nodes: OnHead, tmp_path: Path) -> None:
    path = uneven_nodes.write_sweep(
        "six",
        workers={"count": 6, "resources_per_worker": {"CPU": 1}},
        global_batch_size=6,
        space=ONE_CANDIDATE,
        search={"method": "grid", "confirm": False},
    )
    exit_code, output = uneven_nodes.run("run", path, "--no-check", output=tmp_path / "out", timeout_s=280)
    (row,) = uneven_nodes.journal("six")
    _, four, two = uneven_nodes.addresses
    assert (exit_code, row["status"]) == (5, "COMPLETED"), output
    assert Counter(row["nodes"]) == {four: 4, two: 2}
    assert f"6 workers: 4 on {four}, 2 on {two}; no slot is idle" in output


def test_one_worker_more_is_refused_at_once(uneven_nodes: OnHead, tmp_path: Path) -> None:
    path = uneven_nodes.write_sweep(
        "seven", workers={"count": 7, "resources_per_worker": {"CPU": 1}}, global_batch_size=7, space=ONE_CANDIDATE
    )
    exit_code, output = uneven_nodes.run("check", path, output=tmp_path / "out")
    assert exit_code == 2 and "available: 6" in output and "(nearest valid: 6)" in output
