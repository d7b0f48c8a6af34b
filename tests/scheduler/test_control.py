"""Requests to a local job."""

from __future__ import annotations

from pathlib import Path

from dlbhpc.scheduler.control import (
    CANCEL,
    PREEMPT,
    Request,
    leave,
    mark_cancelled,
    take,
    was_cancelled,
)


def test_a_request_is_taken_once(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    assert take(path) is None
    leave(path, Request(PREEMPT, 2.5))
    assert take(path) == Request(PREEMPT, 2.5)
    assert take(path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_last_of_two_requests_counts(tmp_path: Path) -> None:
    leave(tmp_path / "control.json", Request(PREEMPT, 30))
    leave(tmp_path / "control.json", Request(CANCEL, 30))
    assert take(tmp_path / "control.json") == Request(CANCEL, 30)


def test_only_the_job_that_was_cancelled_was(tmp_path: Path) -> None:
    mark_cancelled(tmp_path, "41")
    assert was_cancelled(tmp_path, "41")
    assert not was_cancelled(tmp_path, "4")
