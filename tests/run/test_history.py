"""What the attempts' folders tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlbhpc.layout import OutputLayout
from dlbhpc.run.history import (
    Attempt,
    attempts_without_step,
    read_attempts,
    read_events,
    read_progress,
    steps_repeated,
    told_status,
)


def attempt(number: int, resumed_from: int, reached: int = 0, submission: str = "7") -> Attempt:
    reached = max(resumed_from, reached)
    return Attempt(number, Path(), "1", resumed_from, reached, None, None, submission=submission)


def write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_attempts_are_read_in_order_with_how_far_they_came(tmp_path: Path) -> None:
    output = OutputLayout(tmp_path)
    for number, resumed, progress, last_event in ((1, None, 5, 8), (2, 8, 12, 9)):
        folder = output.attempt(number)
        begun = {"attempt": number, "job_id": "7", "resumed_from": resumed}
        write(folder, "attempt.json", json.dumps(begun))
        write(folder, "progress.json", json.dumps({"step": progress}))
        write(folder, "events.jsonl", json.dumps({"event": "saved", "step": last_event}) + "\n")
    write(output.attempt(1), "end.json", json.dumps({"reason": "preempted", "status": 75}))
    first, second = read_attempts(output)
    assert (first.number, first.resumed_from, first.reached) == (1, 0, 8)
    assert (first.reason, first.status) == ("preempted", 75)
    assert (second.number, second.resumed_from, second.reached) == (2, 8, 12)
    assert second.reason is None


def test_an_attempt_that_died_before_its_record_is_left_out(tmp_path: Path) -> None:
    output = OutputLayout(tmp_path)
    output.attempt(1).mkdir(parents=True)
    write(output.attempt(2), "attempt.json", "{torn")
    assert read_attempts(output) == []


def test_the_training_says_with_which_status_it_leaves(tmp_path: Path) -> None:
    assert told_status(tmp_path) is None
    write(tmp_path, "events.jsonl", '{"event": "start"}\n{"event": "leaving", "status": 75}\n')
    assert told_status(tmp_path) == 75


def test_a_torn_last_event_and_torn_progress_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "events.jsonl", '{"event": "start"}\n{"event": "sav')
    write(tmp_path, "progress.json", '{"step": ')
    assert read_events(tmp_path) == [{"event": "start"}]
    assert read_progress(tmp_path) == {}


@pytest.mark.parametrize(
    ("attempts", "repeated"),
    [
        ([], 0),
        ([attempt(1, 0, 10)], 0),
        ([attempt(1, 0, 10), attempt(2, 10, 20)], 0),
        ([attempt(1, 0, 10), attempt(2, 7, 20)], 3),
        ([attempt(1, 0, 10), attempt(2, 0), attempt(3, 0, 4)], 10),
    ],
)
def test_steps_made_more_than_once_are_counted(attempts: list[Attempt], repeated: int) -> None:
    assert steps_repeated(attempts) == repeated


@pytest.mark.parametrize(
    ("attempts", "newest", "expected"),
    [
        ([], 0, 0),
        ([attempt(1, 0)], 5, 0),
        ([attempt(1, 0)], 0, 1),
        ([attempt(1, 0), attempt(2, 5), attempt(3, 5), attempt(4, 5)], 5, 3),
        ([attempt(1, 0), attempt(2, 5), attempt(3, 5), attempt(4, 5)], 6, 0),
        ([attempt(1, 5, submission="6"), attempt(2, 5), attempt(3, 5)], 5, 2),
    ],
)
def test_attempts_of_one_submission_without_a_new_step_are_counted(
    attempts: list[Attempt], newest: int, expected: int
) -> None:
    assert attempts_without_step(attempts, newest, "7") == expected
