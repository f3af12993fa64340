"""A wait is told of, and not too often."""

from __future__ import annotations

from fakes import FakeLauncher

from raysweep.search.heartbeat import SAY_EVERY_S, Heartbeat
from raysweep.search.observer import Observer


class Notes(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_wait_is_told_of_every_half_minute_while_it_lasts() -> None:
    launcher, notes, now_s = FakeLauncher(), Notes(), [100.0]
    heartbeat = Heartbeat(launcher, notes, clock=lambda: now_s[0])
    launcher.pending = "waiting for workers"
    heartbeat.beat()
    assert notes.texts == []
    for _ in range(4):
        now_s[0] += SAY_EVERY_S / 2
        heartbeat.beat()
    assert notes.texts == ["waiting for workers"] * 2
    launcher.pending = ""
    now_s[0] += SAY_EVERY_S
    heartbeat.beat()
    assert len(notes.texts) == 2
