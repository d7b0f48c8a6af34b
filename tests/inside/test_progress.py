"""What a running attempt tells."""

from __future__ import annotations

import json

import pytest

from dlbhpc.inside.progress import EventLog, ProgressFile


@pytest.fixture
def clock():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


def test_progress_is_due_once_an_interval_and_at_the_end(tmp_path, clock):
    progress = ProgressFile(tmp_path / "progress.json", 1, 10, interval=1.0, clock=clock)
    progress.start(0)
    assert not progress.is_due(1)
    assert progress.is_due(10)
    clock.now = 1.0
    assert progress.is_due(1)


def test_the_pace_is_that_since_the_last_write(tmp_path, clock):
    path = tmp_path / "progress.json"
    progress = ProgressFile(path, 3, 10, clock=clock)
    progress.start(2)
    clock.now = 2.0
    progress.write(6, epoch=1, loss=0.5)
    told = json.loads(path.read_text())
    assert told["steps_per_second"] == 2.0
    assert {k: told[k] for k in ("step", "total", "epoch", "loss", "attempt")} == {
        "step": 6,
        "total": 10,
        "epoch": 1,
        "loss": 0.5,
        "attempt": 3,
    }
    clock.now = 3.0
    progress.write(7, epoch=1, loss=None)
    assert json.loads(path.read_text())["steps_per_second"] == 1.0
    assert [p.name for p in tmp_path.iterdir()] == ["progress.json"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_json_cannot_hold_is_left_out(tmp_path, loss):
    path = tmp_path / "progress.json"
    ProgressFile(path, 1, 10).write(1, epoch=0, loss=loss)
    assert json.loads(path.read_text())["loss"] is None


def test_events_are_lines_in_order(tmp_path):
    path = tmp_path / "events.jsonl"
    EventLog(path, 2).write("start", world=4)
    EventLog(path, 2).write("stop", step=7)
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(e["event"], e["attempt"]) for e in told] == [("start", 2), ("stop", 2)]
    assert told[1]["step"] == 7


def test_a_folder_that_is_gone_does_not_end_the_training(tmp_path):
    EventLog(tmp_path / "gone" / "events.jsonl", 1).write("start")
    ProgressFile(tmp_path / "gone" / "progress.json", 1, 10).write(1, epoch=0, loss=1.0)
