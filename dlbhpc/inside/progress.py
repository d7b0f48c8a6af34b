"""Files in which a running attempt tells how far it is and what happened."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


class EventLog:
    """Appends one JSON object a line. Telling must not end a training: failures are swallowed.

    While ``silent``, nothing is told: one rank speaks for all.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        self._path = path
        self._attempt = attempt
        self.silent = False

    def write(self, event: str, **fields: Any) -> None:
        """Add one event with its time (seconds since the epoch) and the attempt's number."""
        if self.silent:
            return
        entry = {"event": event, "time": time.time(), "attempt": self._attempt, **fields}
        line = (json.dumps(entry) + "\n").encode()
        try:
            # One write with O_APPEND: a reader never sees half of two lines mixed.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError:
            pass

    def leave(self, status: int) -> NoReturn:
        """End the process with this status, and tell it.

        What srun reports is the highest status of all tasks, also of those that it killed itself.
        """
        self.write("leaving", status=status)
        raise SystemExit(status)

    def say(self, sentence: str) -> None:
        """Tell whoever reads the job's output."""
        if not self.silent:
            print(f"dlbhpc: {sentence}", flush=True)


class ProgressFile:
    """Replaces a small JSON file at most once an interval; readers see a whole one or none."""

    def __init__(
        self,
        path: Path,
        attempt: int,
        total: int,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``total`` is the run's number of optimizer steps, ``interval`` in seconds."""
        self._path = path
        self._attempt = attempt
        self._total = total
        self._interval = interval
        self._clock = clock
        self._last: tuple[float, int] | None = None

    def start(self, step: int) -> None:
        """Begin to measure the pace, at this step."""
        self._last = (self._clock(), step)

    def is_due(self, step: int) -> bool:
        """Whether the interval is over, or the run is at its last step."""
        return (
            self._last is None
            or step >= self._total
            or self._clock() - self._last[0] >= self._interval
        )

    def write(self, step: int, epoch: int, loss: float | None) -> None:
        """Tell the state after ``step``; the pace is that since the file was last written."""
        now = self._clock()
        pace = None
        if self._last is not None and now > self._last[0]:
            pace = (step - self._last[1]) / (now - self._last[0])
        self._last = (now, step)
        content = {
            "step": step,
            "total": self._total,
            "epoch": epoch,
            # JSON has no NaN.
            "loss": loss if loss is not None and abs(loss) < float("inf") else None,
            "steps_per_second": pace,
            "time": time.time(),
            "attempt": self._attempt,
        }
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self._path)
        except OSError:
            pass
