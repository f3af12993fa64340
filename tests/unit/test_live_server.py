"""The report while a sweep runs: to this machine only, the page and its version and nothing else."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from export_builders import finished_sweep, write_journal
from results_builders import completed
from test_page import OTHERS

from raysweep.cli.report import live_server
from raysweep.errors import ConfigError
from raysweep.page.live_server import LiveServer, is_loopback, parse_address
from raysweep.results.journal import EntryKind, Journal
from raysweep.serde import to_dict


def _get(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _version_in(page: str) -> str:
    return re.findall(r'data-version="([^"]+)"', page)[0]


def test_a_trial_shows_on_the_next_look(tmp_path: Path) -> None:
    contents = finished_sweep(others=OTHERS[:1])
    first, second = contents.measurements[0], completed(OTHERS[0].candidate_id, 70.5)
    with live_server(str(tmp_path), address="0") as server:
        status, waiting = _get(server.url)
        assert status == 200 and "No candidate yet" in waiting
        write_journal(tmp_path, type(contents)(sweeps=contents.sweeps, measurements=(first,)))
        page = _get(server.url)[1]
        assert _get(f"{server.url}version") == (200, _version_in(page)) and _version_in(page) != _version_in(waiting)
        assert "It has not come to its end." in page and "70.50" not in page
        with Journal.open(tmp_path / "journal.jsonl") as journal:
            journal.append(EntryKind.MEASUREMENT, to_dict(second))
        assert _get(f"{server.url}version")[1] != _version_in(page)
        assert "70.50" in _get(server.url)[1]


def test_nothing_but_the_page_and_its_version_is_served(tmp_path: Path) -> None:
    write_journal(tmp_path, finished_sweep())
    with live_server(str(tmp_path), address="0") as server:
        for path in ("journal.jsonl", "../journal.jsonl", "%2e%2e/journal.jsonl", "?x=1", "version/", "logs"):
            assert _get(server.url + path)[0] == 404, path
        request = urllib.request.Request(server.url, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=10)


def test_it_listens_on_loopback_and_answers_no_other_name(tmp_path: Path) -> None:
    with live_server(str(tmp_path), address="0") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert _get(server.url, Host="attacker.example")[0] == 403
        assert _get(server.url, Host="localhost:80")[0] == 200


def test_the_page_is_made_once_a_version() -> None:
    made: list[str] = []
    versions = ["1"]

    def page(version: str) -> str:
        made.append(version)
        return f"page {version}"

    with LiveServer(page=page, version=lambda: versions[-1], host="127.0.0.1", port=0) as server:
        readers = [threading.Thread(target=_get, args=(server.url,)) for _ in range(5)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert made == ["1"]
        versions.append("2")
        assert _get(server.url) == (200, "page 2") and made == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9000", ("::1", 9000)),
        ("head:1", ("head", 1)),
    ],
)
def test_an_address_is_a_port_with_or_without_a_host(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "port", "localhost:", ":8080", "70000", "localhost:-1"])
def test_any_other_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\[HOST:\]PORT"):
        parse_address(text)


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with live_server(str(tmp_path), address="0") as server:
        port = server.url.split(":")[-1].strip("/")
        with pytest.raises(ConfigError, match="cannot be listened on: Address already in use"):
            live_server(str(tmp_path), address=port)


def test_only_loopback_is_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "head")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
