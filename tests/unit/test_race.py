"""Racing: who is stopped, who is measured longer, and what both become."""

from __future__ import annotations

import math

import pytest
from builders import make_candidate, make_measurement, make_report, make_request
from results_builders import figures

from raysweep.budget import MeasurementWindow
from raysweep.launch.records import Answer, measurement_of
from raysweep.race import Race, WindowEnd, window_end
from raysweep.results.finalists import finalists
from raysweep.search.searcher import LONGEST_SHARE_OF_DEADLINE, OrderedSearcher
from raysweep.trial import TrialStatus

WINDOW = MeasurementWindow(measured_steps=8, measured_s=0.0)
RACE = Race(best_step_time_s=1.0, best_log_error=0.001)


def times(median_s: float, count: int, *, spread: float = 0.01) -> list[float]:
    """Step times around a median, evenly spread."""
    return [median_s * (1 + spread * (2 * i / (count - 1) - 1)) for i in range(count)]


def test_without_a_race_a_window_ends_when_it_is_full() -> None:
    assert window_end(times(1.0, 7), WINDOW, None) is None
    assert window_end(times(1.0, 8), WINDOW, None) is WindowEnd.FULL


def test_far_behind_it_is_stopped_after_five_steps_and_no_sooner() -> None:
    assert window_end(times(1.3, 4), WINDOW, RACE) is None
    assert window_end(times(1.3, 5), WINDOW, RACE) is WindowEnd.LOST
    assert window_end(times(1.05, 5), WINDOW, RACE) is None


def test_a_wide_spread_saves_from_being_stopped() -> None:
    assert window_end(times(1.3, 5, spread=0.5), WINDOW, RACE) is None


def test_what_is_told_from_the_best_ends_on_time() -> None:
    assert window_end(times(1.05, 8), WINDOW, RACE) is WindowEnd.SEPARATED
    assert window_end(times(0.9, 8), WINDOW, RACE) is WindowEnd.SEPARATED


def test_what_is_sure_to_be_within_one_percent_need_not_go_on() -> None:
    assert window_end(times(1.001, 8, spread=0.001), WINDOW, RACE) is WindowEnd.SEPARATED


def test_what_is_not_told_from_the_best_goes_on_to_three_windows_and_is_a_tie() -> None:
    assert window_end(times(1.005, 23, spread=0.2), WINDOW, RACE) is None
    assert window_end(times(1.005, 24, spread=0.2), WINDOW, RACE) is WindowEnd.TIE


def test_no_extension_runs_into_the_deadline() -> None:
    short = Race(best_step_time_s=1.0, best_log_error=0.001, longest_s=9.0)
    assert window_end(times(1.005, 8, spread=0.2), WINDOW, short) is None
    assert window_end(times(1.005, 9, spread=0.2), WINDOW, short) is WindowEnd.TIE


def _answer(**changes: object) -> Answer:
    return Answer(
        reports=[make_report(rank, **changes) for rank in range(2)],
        failures=[],
        group_id="g",
        position_in_group=1,
        ranks=[],
        started_at="",
        wall_s=1.0,
    )


def test_a_lost_race_is_stopped_with_figures_and_a_reason_and_cannot_win() -> None:
    request = make_request(race=Race(best_step_time_s=0.02, best_log_error=0.01))
    stopped = measurement_of(request, _answer(window_end="lost"))
    assert stopped.status is TrialStatus.STOPPED and stopped.figures is not None
    assert "stopped after 8 timed steps: 80.00 samples/s, surely below 0.9 of the best, 200.00" in stopped.reason
    assert measurement_of(request, _answer(window_end="tie")).status is TrialStatus.COMPLETED
    assert finalists([]) == []


def test_a_searcher_that_races_hands_on_the_best_so_far() -> None:
    candidate = make_candidate()
    request = make_request(candidate=candidate, deadline_s=100.0)
    searcher = OrderedSearcher([candidate], racing=True)
    assert searcher.in_race(request).race is None, "nothing to beat yet"
    searcher.knows(candidate, make_measurement(samples_per_s=50.0))
    searcher.knows(candidate, make_measurement(samples_per_s=40.0))
    race = searcher.in_race(request).race
    assert race is not None
    samples = candidate.micro_batch_size_per_gpu * 2
    assert race.best_step_time_s == pytest.approx(samples / 50)
    assert race.longest_s == LONGEST_SHARE_OF_DEADLINE * 100.0
    assert OrderedSearcher([candidate]).in_race(request).race is None


def test_intervals_are_those_of_the_median() -> None:
    """Five steps 20 % slower, all equal: no doubt. The same with an error of 6 %: within 1.96 of 0.9."""
    assert RACE.is_lost([1.2] * 5)
    slowness = math.log(1.2)
    iqr = (slowness - math.log(1 / 0.9)) / 1.96 * 1.349 * math.sqrt(5) / math.sqrt(math.pi / 2) * 1.2
    nearly = [1.2 - iqr / 2 * 1.01] * 2 + [1.2] + [1.2 + iqr / 2 * 1.01] * 2
    assert not RACE.is_lost(nearly)
    assert figures().window_end == ""
