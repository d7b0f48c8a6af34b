"""How long the saves of earlier runs took, and how large they were."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlbhpc.layout import OutputLayout
from dlbhpc.run.history import read_events

_NEWEST_SAVES = 20


@dataclass(frozen=True)
class Saves:
    """The longest (seconds) and the largest (bytes) of the newest saves of some runs."""

    seconds: float
    bytes: int


def measured_saves(outputs: Iterable[OutputLayout]) -> Saves | None:
    """What the newest saves of each run's newest attempt took; None where there was none."""
    saves = [save for output in outputs for save in _saves(output)[-_NEWEST_SAVES:]]
    if not saves:
        return None
    return Saves(max(save.seconds for save in saves), max(save.bytes for save in saves))


def _saves(output: OutputLayout) -> list[Saves]:
    for folder in sorted(output.attempts.glob("[0-9]*"), reverse=True):
        found = []
        for event in read_events(folder):
            seconds, size = event.get("seconds"), event.get("bytes")
            if event["event"] == "saved" and isinstance(seconds, float) and isinstance(size, int):
                found.append(Saves(seconds, size))
        if found:
            return found
    return []
