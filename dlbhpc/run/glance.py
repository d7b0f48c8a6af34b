"""A run at a glance: what a table over many runs says of each, read from a handful of files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.layout import OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.run.history import read_progress, read_record
from dlbhpc.run.record import read_run
from dlbhpc.steps import find_newest

PACE_ATTEMPTS = 3
"""Newest attempts that the pace is measured over: older ones may have had other nodes."""

# The first event of an attempt says when its training started; it is within this many bytes.
_FIRST_EVENT_BYTES = 4096


@dataclass(frozen=True)
class Glimpse:
    """One attempt, read lightly. Times are seconds since the epoch, None where unknown.

    ``reason`` is None while it runs, or when nothing of ours was alive to say it;
    ``requeue_wanted`` says that its job was to run again and could not be put into the queue.
    ``steps`` and ``seconds`` are the optimizer steps it made and the time it took for them.
    """

    folder: Path
    number: int
    job_id: str
    reason: str | None
    requeue_wanted: bool
    begun: float | None
    ended: float | None
    step: int
    steps: int
    seconds: float
    told: float | None


@dataclass(frozen=True)
class Glance:
    """One run as its folder tells it; ``attempts`` holds the newest few, newest first.

    ``step`` is the last optimizer step that is known to have been made. ``pace`` is in optimizer
    steps a second, measured over the newest attempts, validation and saving included; None before
    anything was measured.
    """

    output: OutputLayout
    recipe: str
    dataset: str
    trial: bool
    completed: bool
    step: int
    total: int
    attempt_count: int
    attempts: tuple[Glimpse, ...]

    @property
    def last(self) -> Glimpse | None:
        return self.attempts[0] if self.attempts else None

    @property
    def last_end(self) -> str | None:
        """Why the newest attempt that said so ended."""
        return next((attempt.reason for attempt in self.attempts if attempt.reason), None)

    @property
    def pace(self) -> float | None:
        measured = [attempt for attempt in self.attempts if attempt.steps > 0]
        seconds = sum(attempt.seconds for attempt in measured[:PACE_ATTEMPTS])
        steps = sum(attempt.steps for attempt in measured[:PACE_ATTEMPTS])
        return steps / seconds if seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training that are left at the measured pace; None where none was measured."""
        pace = self.pace
        return (self.total - self.step) / pace if pace else None


def glance(output: OutputLayout) -> Glance:
    """Look at one run; raises DlbhpcError naming a record that is missing or damaged."""
    run = read_run(output)
    completed = read_completed(output)
    folders = sorted(output.attempts.glob("[0-9]*"), reverse=True)
    attempts = tuple(_newest(folders))
    if completed is not None:
        step = int(completed["step"])
    else:
        saved = find_newest(output.steps, check_content=False).record
        told = attempts[0].step if attempts else 0
        step = max(saved.step if saved else 0, told)
    return Glance(
        output=output,
        recipe=run.launch.recipe.name,
        dataset=run.launch.recipe.dataset.name,
        trial=run.launch.trial is not None,
        completed=completed is not None,
        step=step,
        total=run.total_steps,
        attempt_count=len(folders),
        attempts=attempts,
    )


def _newest(folders: list[Path]) -> Iterator[Glimpse]:
    """The newest attempts, until one has ended and enough have made steps to tell the pace."""
    ended, measured = False, 0
    for folder in folders:
        attempt = _glimpse(folder)
        if attempt is None:
            continue
        yield attempt
        ended = ended or attempt.reason is not None
        measured += attempt.steps > 0
        if ended and measured >= PACE_ATTEMPTS:
            return


def _glimpse(folder: Path) -> Glimpse | None:
    begun = read_record(folder / "attempt.json")
    number, resumed_from = begun.get("attempt"), begun.get("resumed_from") or 0
    if not isinstance(number, int) or not isinstance(resumed_from, int):
        return None
    end = read_record(folder / "end.json")
    progress = read_progress(folder)
    started, told = _training_started(folder), _number(progress.get("time"))
    step = max(resumed_from, progress.get("step", 0))
    steps, seconds = _made(step - resumed_from, started, told)
    return Glimpse(
        folder=folder,
        number=number,
        job_id=str(begun.get("job_id", "")),
        reason=end.get("reason"),
        requeue_wanted=end.get("requeue_wanted") is True,
        begun=_number(begun.get("time")),
        ended=_number(end.get("time")),
        step=step,
        steps=steps,
        seconds=seconds,
        told=told,
    )


def _made(steps: int, started: float | None, told: float | None) -> tuple[int, float]:
    """Steps and the seconds they took; (0, 0.0) where the time is not known."""
    if started is None or told is None or told <= started:
        return 0, 0.0
    return steps, told - started


def _training_started(folder: Path) -> float | None:
    try:
        with (folder / "events.jsonl").open("rb") as file:
            line = file.readline(_FIRST_EVENT_BYTES)
        event = json.loads(line)
    except (OSError, ValueError):
        return None
    return _number(event.get("time")) if isinstance(event, dict) else None


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None
