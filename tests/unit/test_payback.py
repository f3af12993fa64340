"""When a search has paid for itself."""

from __future__ import annotations

from test_side_by_side import record

from raysweep.results.payback import payback


def test_it_is_compared_with_the_best_of_stage_3() -> None:
    # A tenth slower, so ten times the search's own length has to be trained.
    records = [record(1, rate=100), record(3, rate=50), record(3, 1, rate=90), record(2, rate=95)]
    told = payback(records, winner="s1-k0-100", wall_s=360.0)
    assert told.startswith("Pays for itself after 1 h 0 min of training, against stage 3 at its best here, s3-k1-90")
    assert "10 % slower" in told


def test_without_stage_3_the_next_best_serves() -> None:
    assert "against s2-k0-80, 20 % slower" in payback(
        [record(1, rate=100), record(2, rate=80)], winner="s1-k0-100", wall_s=1
    )


def test_nothing_is_said_where_nothing_is_slower() -> None:
    assert payback([record(1, rate=100)], winner="s1-k0-100", wall_s=1) == ""
    assert payback([record(1, rate=100), record(3, rate=101)], winner="s1-k0-100", wall_s=1) == ""
