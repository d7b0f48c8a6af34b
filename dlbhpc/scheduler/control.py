"""Requests to a local job, left as a file that the job looks for: preempt or cancel."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

PREEMPT = "preempt"
CANCEL = "cancel"


@dataclass(frozen=True)
class Request:
    """What was asked for, and how many seconds the processes get before they are killed."""

    action: str
    grace_seconds: float


def leave(path: Path, request: Request) -> None:
    """Leave a request; one that was not taken yet is replaced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(
        json.dumps({"action": request.action, "grace_seconds": request.grace_seconds}),
        encoding="utf-8",
    )
    temporary.replace(path)


def take(path: Path) -> Request | None:
    """The request that waits, taken away; None when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
        path.unlink()
    except FileNotFoundError:
        return None
    try:
        values = json.loads(text)
        return Request(str(values["action"]), float(values["grace_seconds"]))
    except (ValueError, TypeError, KeyError):
        return None  # torn by a crash of whoever left it, who can ask again


def mark_cancelled(folder: Path, job_id: str) -> None:
    """Note beside the job's log that its end was the user's wish."""
    _cancelled_mark(folder, job_id).touch()


def unmark_cancelled(folder: Path, job_id: str) -> None:
    """Take the note back: the job could not be cancelled."""
    _cancelled_mark(folder, job_id).unlink(missing_ok=True)


def was_cancelled(folder: Path, job_id: str) -> bool:
    """Whether the user cancelled this job."""
    return _cancelled_mark(folder, job_id).exists()


def mark_preempted(folder: Path, job_id: str) -> None:
    """Note that a job of Slurm's is asked to stop by us, which Slurm does not know."""
    _preempted_mark(folder, job_id).touch()


def take_preempted(folder: Path, job_id: str) -> bool:
    """Whether we asked this job to stop; the note is taken away, since it runs again."""
    try:
        _preempted_mark(folder, job_id).unlink()
    except FileNotFoundError:
        return False
    return True


def _preempted_mark(folder: Path, job_id: str) -> Path:
    return folder / f"{job_id}.preempted"


def _cancelled_mark(folder: Path, job_id: str) -> Path:
    return folder / f"{job_id}.cancelled"
