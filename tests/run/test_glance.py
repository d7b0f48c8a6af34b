"""A run at a glance: how far it is, how quick, and why it last ended, from few reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.run.glance import Glance, glance
from dlbhpc.run.record import Run, write_records


@pytest.fixture
def submitted(run: Run) -> Run:
    write_records(run)
    return run


def attempt(
    run: Run, number: int, *, start: int = 0, step: int = 0, seconds: float = 0, **end: Any
) -> Path:
    """An attempt that trained from one step to another in so many seconds."""
    folder = run.launch.output.attempt(number)
    folder.mkdir(parents=True)
    begun = {"attempt": number, "job_id": "7", "resumed_from": start or None, "time": 1000.0}
    (folder / "attempt.json").write_text(json.dumps(begun))
    if step:
        (folder / "events.jsonl").write_text('{"event": "start", "time": 2000.0}\n{"eve')
        progress = {"step": step, "total": 7, "time": 2000.0 + seconds}
        (folder / "progress.json").write_text(json.dumps(progress))
    if end:
        (folder / "end.json").write_text(json.dumps(end))
    return folder


def look(run: Run) -> Glance:
    return glance(run.launch.output)


def test_a_run_that_has_not_begun(submitted: Run) -> None:
    seen = look(submitted)
    assert (seen.recipe, seen.dataset, seen.trial) == ("reference_mdlm", "pydoc", False)
    assert (seen.step, seen.attempt_count, seen.last, seen.last_end) == (0, 0, None, None)
    assert seen.pace is None
    assert seen.seconds_left is None


def test_the_pace_is_that_of_the_newest_attempts_that_made_steps(submitted: Run) -> None:
    attempt(submitted, 1, step=1, seconds=1000, reason="preempted")
    attempt(submitted, 2, start=1, step=2, seconds=10, reason="preempted")
    attempt(submitted, 3, start=2, step=3, seconds=10, reason="preempted")
    attempt(submitted, 4, start=3, step=5, seconds=20, reason="preempted")
    attempt(submitted, 5, start=5)
    seen = look(submitted)
    assert seen.pace == pytest.approx(0.1)
    assert seen.seconds_left == pytest.approx((seen.total - 5) / 0.1)
    assert (seen.step, seen.attempt_count, seen.last_end) == (5, 5, "preempted")


@pytest.mark.parametrize("seconds", [0, -5])
def test_a_clock_that_stood_or_went_back_measures_nothing(submitted: Run, seconds: float) -> None:
    attempt(submitted, 1, step=3, seconds=seconds)
    assert look(submitted).pace is None


def test_attempts_without_a_word_are_passed_over_for_the_last_end(submitted: Run) -> None:
    attempt(submitted, 1, reason="storage", time=5.0)
    attempt(submitted, 2)
    seen = look(submitted)
    assert seen.last_end == "storage"
    assert seen.last is not None
    assert (seen.last.number, seen.last.reason, seen.last.begun) == (2, None, 1000.0)


@pytest.mark.parametrize("text", ["", "[]", '{"event": "start"}', '{"time": true}', "\xff"])
def test_a_torn_first_event_measures_nothing(submitted: Run, text: str) -> None:
    folder = attempt(submitted, 1, step=3, seconds=10)
    (folder / "events.jsonl").write_text(text)
    assert look(submitted).pace is None


def test_a_record_that_is_torn_leaves_the_attempt_out(submitted: Run) -> None:
    (attempt(submitted, 1, step=3, seconds=10) / "attempt.json").write_text('{"attempt": "x"}')
    assert look(submitted).attempts == ()
