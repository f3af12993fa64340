"""The report: the answer first, every candidate, and nothing of what users write taken for markup."""

from __future__ import annotations

import csv
import io
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_workload
from export_builders import finished_sweep, large_sweep, write_journal
from results_builders import failed
from typer.testing import CliRunner

from raysweep.cli.main import app
from raysweep.page.charts import prediction_error
from raysweep.page.csv_table import csv_table
from raysweep.page.facts import ReportFacts, gather
from raysweep.page.gains import gains
from raysweep.page.html import html_report
from raysweep.page.markdown import markdown_report
from raysweep.page.speed_map import stage_maps
from raysweep.page.svg import tick_values
from raysweep.results.journal import JournalContents
from raysweep.search.foretell import foretell_scales
from raysweep.search.predict import Scale, predict
from raysweep.trial import FailureKind, GroupEnd, MemoryKind, TrialStatus

SIX_MIB = 6 * 2**20
OTHERS = [
    make_candidate(zero_stage=0),
    make_candidate(zero_stage=3, activation_checkpoint_interval=1),
    make_candidate(micro_batch_size_per_gpu=8),
    make_candidate(micro_batch_size_per_gpu=16),
]


def sweep_with_failures(reason: str = "rank 0: bad") -> JournalContents:
    """A winner, a slower stage 0 and stage 3, an OOM, and a failure for `reason`."""
    contents = finished_sweep(others=OTHERS)
    too_large, bad = OTHERS[2].candidate_id, OTHERS[3].candidate_id
    kept = [each for each in contents.measurements if each.candidate_id not in (too_large, bad)]
    oom = failed(too_large, TrialStatus.OOM, memory_kind=MemoryKind.DEVICE, reason="120 MiB", peak_memory_bytes=2**27)
    broken = failed(bad, TrialStatus.FAILED, failure_kind=FailureKind.USER_CODE, reason=reason)
    end = GroupEnd(
        group_id="g1",
        reason="sweep ended",
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:10:00+00:00",
    )
    return replace(contents, measurements=(*kept, oom, broken), group_ends=(end,))


def facts(contents: JournalContents | None = None, **values: Any) -> ReportFacts:
    return gather(contents or sweep_with_failures(), **{"name": "tiny"} | values)


class _Texts(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_answer_comes_first_with_its_gains_and_cost() -> None:
    text = _Texts(html_report(facts())).text
    answer = text[text.index("The answer") : text.index("The map")]
    assert "100.00 samples/s" in answer and "confirmed in fresh worker groups" in answer
    assert "s2-k2-b2-g2: ZeRO stage 2" in answer and "peak 50.0 MiB of 100.0 MiB a worker (50 %)" in answer
    assert "worker groups, which were up for 10 min 0 s (0.33 worker-hours)" in answer
    assert "Pays for itself after" in answer


def test_gains_compare_figures_of_the_search() -> None:
    found = {gain.against.split(" (")[0]: gain for gain in gains(facts())}
    assert found["plain data parallelism"].ratio == pytest.approx(1 / 0.9)
    assert found["stage 3 with every block checkpointed"].ratio == pytest.approx(1 / 0.81)
    assert found["the median of 3 measured candidates"].ratio == pytest.approx(1 / 0.9)


def test_a_yardstick_that_was_not_measured_says_why() -> None:
    told = {gain.against: gain.told for gain in gains(facts(finished_sweep()))}
    assert told["plain data parallelism (stage 0)"] == "not measured: not in the space"


def test_every_candidate_has_a_row_in_all_forms() -> None:
    shown = facts()
    ids = {record.candidate_id for record in shown.records}
    assert set(re.findall(r'<tr data-status[^>]*><td class="c">([^<]+)</td>', html_report(shown))) == ids
    assert {row["candidate"] for row in csv.DictReader(io.StringIO(csv_table(shown)))} == ids
    assert all(f"| {each} |" in markdown_report(shown) for each in ids)


def test_the_csv_has_numbers_in_full_and_empty_cells() -> None:
    rows = {row["candidate"]: row for row in csv.DictReader(io.StringIO(csv_table(facts())))}
    assert float(rows["s0-k0-b2-g1"]["samples/s (search)"]) == 90.0
    assert float(rows["s0-k0-b2-g1"]["time against the winner"]) == pytest.approx(1 / 0.9)
    assert rows["s2-k0-b8-g1"]["samples/s (search)"] == "" and rows["s2-k0-b8-g1"]["status"] == "OOM (device)"


EVIL = "<script>alert(1)</script>"


def _evil() -> JournalContents:
    """A model, a reason and an environment that would like to be markup."""
    model = {**make_workload().model, "kind": "hf", "config_class": EVIL, "block_lists": []}
    contents = sweep_with_failures(reason=f'{EVIL}" \' onmouseover="alert(2)" =cmd | <img src=x onerror=alert(3)>')
    workload = make_workload(model=model, environment={"A": f'"{EVIL}"'})
    return replace(contents, sweeps=tuple(replace(each, workload=workload) for each in contents.sweeps))


def test_what_users_write_is_text_in_html() -> None:
    page = html_report(facts(_evil(), name=EVIL, sweep_file=f"name: {EVIL}</pre>"))
    parsed = _Texts(page)
    assert parsed.tags.count("script") == 1 and "img" not in parsed.tags and EVIL not in page
    assert parsed.text.count("alert(1)") >= 4 and 'onmouseover="alert(2)"' in parsed.text


def test_what_users_write_is_text_in_markdown_and_csv() -> None:
    text = markdown_report(facts(_evil(), name=EVIL))
    assert re.search(r"(?<!\\)<", text) is None and r"\<script\>alert(1)\</script\>" in text
    assert all(line.count(" | ") == 11 for line in text.splitlines() if line.startswith("| s2-"))
    shown = facts(sweep_with_failures(reason="=1+1"))
    assert ",'=1+1" in csv_table(shown)


def test_the_page_needs_nothing_else_and_lets_nothing_else_in() -> None:
    page = html_report(facts())
    assert _Texts(page).links == [] and "http" not in re.sub(r'http-equiv="', "", page)
    assert "default-src 'none'" in page and "url(" not in page


def test_the_policy_s_hash_is_that_of_the_script() -> None:
    import base64
    import hashlib

    page = html_report(facts())
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_a_sweep_with_only_failures_has_no_winner_and_its_causes() -> None:
    contents = finished_sweep(others=OTHERS)
    failures = tuple(
        failed(row.candidate.candidate_id, TrialStatus.FAILED, failure_kind=FailureKind.USER_CODE, reason="rank 0: no")
        for row in contents.sweep.plan_rows
    )
    shown = facts(replace(contents, measurements=failures))
    text = _Texts(html_report(shown)).text
    assert "No winner" in text and "FAILED (user_code)" in text and "rank 0: no" in text
    assert "No winner" in markdown_report(shown) and prediction_error(shown) == ""


def test_a_single_candidate_and_a_sweep_that_has_only_begun_have_a_report() -> None:
    contents = finished_sweep()
    assert "100.00 samples/s" in html_report(facts(contents))
    begun = html_report(facts(replace(contents, measurements=(), finished=None)))
    assert "No winner" in begun and "SKIPPED" in begun


def test_the_wall_stands_before_the_first_that_is_too_large() -> None:
    stage = next(each for each in stage_maps(facts()) if each.zero_stage == 2)
    cells = dict(stage.rows)[0]
    assert list(stage.micro_batches) == [2, 8, 16]
    assert [(cell.text, cell.is_at_the_wall) for cell in cells] == [("", False), ("OOM", True), ("failed", False)]
    assert "best" in dict(stage.rows)[2][0].kind


def test_five_thousand_candidates_stay_within_six_mib() -> None:
    page = html_report(facts(large_sweep(5000)))
    assert page.count("<tr data-status") == 5000
    assert len(page.encode()) <= SIX_MIB


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 100.0), (40, 46), (0.003, 0.0041), (7, 7), (0, 0), (12, 5e9)])
def test_ticks_are_few_and_round_and_span_the_values(low: float, high: float) -> None:
    ticks = tick_values(low, high)
    assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 10
    steps = {round((b - a) / (ticks[1] - ticks[0]), 6) for a, b in itertools.pairwise(ticks)}
    assert steps == {1.0}


@pytest.mark.parametrize(
    ("options", "file"), [([], "report.html"), (["--markdown"], "report.md"), (["--csv"], "report.csv")]
)
def test_the_command_writes_into_the_results(tmp_path: Path, options: list[str], file: str) -> None:
    folder = write_journal(tmp_path / "tiny", sweep_with_failures())
    ran = CliRunner().invoke(app, ["report", str(folder), *options])
    assert ran.exit_code == 0 and ran.output.strip() == str(folder / file)
    assert "s2-k2-b2-g2" in (folder / file).read_text()
    printed = CliRunner().invoke(app, ["report", str(folder), *options, "--output", "-"])
    assert printed.output == (folder / file).read_text()


def test_the_command_says_what_it_cannot_read(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert ran.exit_code == 1 and "no sweep has written here" in ran.output
    ran = CliRunner().invoke(app, ["report", "s3://bucket/sweep"])
    assert ran.exit_code == 2 and "from a local folder" in ran.output
    ran = CliRunner().invoke(app, ["report", str(tmp_path), "--csv", "--markdown"])
    assert ran.exit_code == 2 and "one file" in ran.output


def test_a_prediction_for_more_workers_is_called_one_and_is_that_of_the_command() -> None:
    contents = finished_sweep(others=[*OTHERS, make_candidate(zero_stage=1)])
    told = gather(contents, name="tiny", foretell=foretell_scales)
    assert told.forecast is not None
    assert [each.world_size for each in told.forecast.predictions] == [4, 8, 16]
    first = told.forecast.predictions[0]
    best = predict(contents, Scale(world_size=4))[0]
    assert (first.candidate_id, first.samples_per_s) == (best.candidate.candidate_id, best.samples_per_s)
    assert first.samples_per_s_low < first.samples_per_s < first.samples_per_s_high
    for text in (_Texts(html_report(told)).text, markdown_report(told)):
        assert "Prediction for more workers" in text and "Nothing was run with these numbers of workers" in text
        assert f"{first.samples_per_s:.2f}" in text


def test_without_a_model_nothing_is_predicted() -> None:
    told = gather(finished_sweep(others=OTHERS[:1]), name="tiny", foretell=foretell_scales)
    assert told.forecast is None
    assert "Prediction for more workers" not in html_report(told) + markdown_report(told)
