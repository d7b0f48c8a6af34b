"""What earlier attempts measured: pace, the time of a save, and how often something ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import Geometry
from dlbhpc.layout import Layout, OutputLayout
from dlbhpc.run.history import Attempt, read_attempts, read_events, read_progress, read_record
from dlbhpc.run.reasons import RULES, Reason
from dlbhpc.run.record import Run, read_run, run_folders

_NEWEST_SAVES = 20


@dataclass(frozen=True)
class Span:
    """One attempt as measured, in seconds; ``interrupted`` says that it had to run again."""

    steps: int
    seconds: float
    saves: tuple[float, ...]
    interrupted: bool


@dataclass(frozen=True)
class Measured:
    """One run and the spans of its attempts."""

    run: Run
    spans: tuple[Span, ...]


def measured_runs(layout: Layout, wanted: Callable[[Run], bool]) -> list[Measured]:
    """The wanted ones of the runs under the root's checkpoints; a damaged one tells nothing."""
    found = []
    for output in run_folders(layout):
        try:
            run = read_run(output)
        except DlbhpcError:
            continue
        if wanted(run):
            found.append(Measured(run, spans_of(output)))
    return found


def spans_of(output: OutputLayout) -> tuple[Span, ...]:
    """The attempts of a run that came to train."""
    attempts = read_attempts(output)
    spans = (_span(attempt, attempt is attempts[-1]) for attempt in attempts)
    return tuple(span for span in spans if span is not None)


def steps_per_second(spans: Iterable[Span]) -> float | None:
    """The pace over whole attempts, their start and their saves included; None where unknown."""
    known = [span for span in spans if span.steps > 0 and span.seconds > 0]
    seconds = sum(span.seconds for span in known)
    return sum(span.steps for span in known) / seconds if seconds else None


def save_seconds(spans: Iterable[Span]) -> float | None:
    """The mean time of a save; None where none was measured."""
    saves = [seconds for span in spans for seconds in span.saves]
    return sum(saves) / len(saves) if saves else None


def seconds_between_interruptions(spans: Sequence[Span]) -> float | None:
    """Mean time that attempts trained for each that was interrupted; None where none was."""
    interrupted = sum(span.interrupted for span in spans)
    return sum(span.seconds for span in spans) / interrupted if interrupted else None


@dataclass(frozen=True)
class Saves:
    """The longest (seconds) and the largest (bytes) of the newest saves of some runs."""

    seconds: float
    bytes: int


def worst_saves(outputs: Iterable[OutputLayout]) -> Saves | None:
    """What the newest saves of each run's newest attempt took at most; None where none was made."""
    saves = [save for output in outputs for save in _newest_saves(output)]
    if not saves:
        return None
    return Saves(max(save.seconds for save in saves), max(save.bytes for save in saves))


def same_training(launch: Launch, run: Run) -> bool:
    """Whether a run trains the same recipe on the same data at the same size (trial or not)."""
    recipe, other = launch.recipe, run.launch.recipe
    return (recipe.name, recipe.dataset.name, recipe.trial) == (
        other.name,
        other.dataset.name,
        other.trial,
    )


def pace(geometry: Geometry, runs: Iterable[Measured]) -> float | None:
    """Measured optimizer steps per second of these runs on this geometry; None if unknown."""
    return steps_per_second(
        span
        for measured in runs
        if measured.run.launch.geometry == geometry
        for span in measured.spans
    )


def _newest_saves(output: OutputLayout) -> list[Saves]:
    for folder in sorted(output.attempts.glob("[0-9]*"), reverse=True):
        if saves := _saves(read_events(folder)):
            return saves[-_NEWEST_SAVES:]
    return []


def _saves(events: Iterable[dict[str, Any]]) -> list[Saves]:
    """The saves among the events; the size of one that does not tell it counts as 0."""
    saves = []
    for event in events:
        seconds, size = event.get("seconds"), event.get("bytes")
        if event["event"] == "saved" and isinstance(seconds, (int, float)):
            saves.append(Saves(float(seconds), size if isinstance(size, int) else 0))
    return saves


def _span(attempt: Attempt, is_last: bool) -> Span | None:
    events = read_events(attempt.folder)
    begun = read_record(attempt.folder / "attempt.json").get("time")
    told = [event.get("time") for event in (*events, read_progress(attempt.folder))]
    times = [time for time in told if isinstance(time, (int, float))]
    if not isinstance(begun, (int, float)) or not times:
        return None
    return Span(
        steps=attempt.reached - attempt.resumed_from,
        # Up to its last word: how long a node lay dead afterwards is nobody's training.
        seconds=max(times) - begun,
        saves=tuple(save.seconds for save in _saves(events)),
        interrupted=_interrupted(attempt.reason, is_last),
    )


def _interrupted(reason: str | None, is_last: bool) -> bool:
    """Whether the attempt was ended from outside; the last one without an end may still run."""
    if reason is None:
        return not is_last
    known = next((item for item in Reason if item.value == reason), None)
    return known is not None and (RULES[known].requeue or known is Reason.INTERRUPTED)
