"""The attempts of a run, as their folders tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlbhpc.layout import OutputLayout


@dataclass(frozen=True)
class Attempt:
    """One attempt: where it went on from, how far it came, and why it ended.

    ``reached`` is the last optimizer step that it is known to have made (0 when unknown);
    ``reason`` is None while it runs, or when nothing of ours was alive to say it.
    ``restart_count`` says which execution of its job it was, ``submission`` which jobs belong
    together, ``node_list`` where it ran (Slurm's words). ``requeue_wanted`` says that its job was
    to run again, and nobody could put it into the queue.
    """

    number: int
    folder: Path
    job_id: str
    resumed_from: int
    reached: int
    reason: str | None
    status: int | None
    restart_count: int = 0
    submission: str = ""
    node_list: str = ""
    requeue_wanted: bool = False


def read_attempts(output: OutputLayout) -> list[Attempt]:
    """Every attempt that began, oldest first; a folder that never got its record is left out."""
    attempts = []
    for folder in sorted(output.attempts.glob("[0-9]*")):
        begun = read_record(folder / "attempt.json")
        number, resumed_from = begun.get("attempt"), begun.get("resumed_from") or 0
        if not isinstance(number, int) or not isinstance(resumed_from, int):
            continue
        ended = read_record(folder / "end.json")
        job_id, restarts = str(begun.get("job_id", "")), begun.get("restart_count")
        attempts.append(
            Attempt(
                number=number,
                folder=folder,
                job_id=job_id,
                resumed_from=resumed_from,
                reached=max(resumed_from, _reached(folder)),
                reason=ended.get("reason"),
                status=ended.get("status"),
                restart_count=restarts if isinstance(restarts, int) else 0,
                submission=str(begun.get("submission") or job_id),
                node_list=str(begun.get("node_list") or ""),
                requeue_wanted=ended.get("requeue_wanted") is True,
            )
        )
    return attempts


def steps_repeated(attempts: Sequence[Attempt]) -> int:
    """Optimizer steps that were made more than once, over all attempts."""
    return sum(
        max(0, earlier.reached - later.resumed_from)
        for earlier, later in zip(attempts, attempts[1:], strict=False)
    )


def attempts_without_step(attempts: Sequence[Attempt], newest_step: int, submission: str) -> int:
    """How many attempts of this submission in a row, up to the last, published no new step.

    ``newest_step`` is the newest valid step now (0 when there is none).
    """
    count = 0
    following = newest_step
    for attempt in reversed(attempts):
        if attempt.submission != submission or following > attempt.resumed_from:
            break
        count += 1
        following = attempt.resumed_from
    return count


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of one attempt; a last line that was torn by a crash is left out."""
    try:
        lines = (folder / "events.jsonl").read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def told_status(folder: Path) -> int | None:
    """The status with which the training said that it leaves; None when it said nothing.

    It is truer than the tasks' own: srun reports the highest of all, also of tasks it had to kill.
    """
    statuses = [event.get("status") for event in read_events(folder) if event["event"] == "leaving"]
    return statuses[-1] if statuses and isinstance(statuses[-1], int) else None


def read_progress(folder: Path) -> dict[str, Any]:
    """The latest progress of one attempt; empty when there is none yet, or none to be read."""
    progress = read_record(folder / "progress.json")
    return progress if isinstance(progress.get("step"), int) else {}


def read_record(path: Path) -> dict[str, Any]:
    """A record of an attempt that may be missing or torn: then it says nothing."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _reached(folder: Path) -> int:
    steps: list[int] = [
        event["step"] for event in read_events(folder) if isinstance(event.get("step"), int)
    ]
    steps.append(read_progress(folder).get("step", 0))
    return max(steps)
