"""Follow a run: its attempts and its progress, on a terminal or in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dlbhpc.layout import OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.run.history import read_attempts, read_progress
from dlbhpc.run.log import attempt_numbers, log_part
from dlbhpc.scheduler.submission import Watch, log_path

_POLL_SECONDS = 0.2
_PIPE_SECONDS = 5.0
_PREFIX = "dlbhpc: "

OnProgress = Callable[[Mapping[str, Any]], None]


def duration(seconds: float) -> str:
    """H:MM:SS, or D-HH:MM:SS as Slurm writes it."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{minute:02d}:{second:02d}"
    return f"{days}-{hour:02d}:{clock}" if days else f"{hour}:{clock}"


def format_progress(progress: Mapping[str, Any]) -> str:
    """One line: step, loss, steps per second, time left, attempt."""
    step, total, speed = progress["step"], progress["total"], progress.get("steps_per_second")
    parts = [f"step {step}/{total}"]
    if isinstance(progress.get("loss"), float):
        parts.append(f"loss {progress['loss']:.3f}")
    if speed:
        parts.append(f"{speed:.2f} steps/s")
        parts.append(f"ETA {duration((total - step) / speed)}")
    parts.append(f"attempt {progress['attempt']}")
    return "  ".join(parts)


@dataclass
class Tail:
    """The lines that were added to a file since the last look; a line without its end waits.

    Reads from byte ``position`` on, and up to byte ``stop`` where there is one.
    """

    path: Path
    position: int = 0
    stop: int | None = None

    def lines(self) -> list[str]:
        data = self._read()
        whole = data[: data.rfind(b"\n") + 1]
        self.position += len(whole)
        return whole.decode(errors="replace").splitlines()

    def rest(self) -> str:
        """The last line where it never got its end: whoever wrote it was killed in the middle."""
        return self._read().decode(errors="replace")

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                return file.read(-1 if self.stop is None else max(0, self.stop - self.position))
        except FileNotFoundError:
            return b""


@dataclass
class Printer:
    """Prints messages as lines; progress in place on a terminal, now and then in a pipe."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    _shown: str = ""
    _last: float = 0.0

    def message(self, text: str) -> None:
        self._clear()
        print(text, file=self.out, flush=True)

    def progress(self, text: str) -> None:
        if text == self._shown:
            return
        if self.out.isatty():
            print(f"\r\x1b[K{text}", end="", file=self.out, flush=True)
        elif time.monotonic() - self._last < _PIPE_SECONDS:
            return
        else:
            print(text, file=self.out, flush=True)
        self._shown, self._last = text, time.monotonic()

    def _clear(self) -> None:
        if self._shown and self.out.isatty():
            print("\r\x1b[K", end="", file=self.out)
        self._shown = ""


def follow(output: OutputLayout, job_id: str, on_progress: OnProgress | None = None) -> int:
    """Show the job until it ends; returns 0 when the run is complete, else 1.

    Ctrl-C ends the following, never the job.
    """
    printer = Printer()
    tail = Tail(log_path(output, job_id))
    earlier = set(attempt_numbers(output))
    watch, alive = Watch(output), True
    while alive:
        # Looked at before the rest, so that the last words of a job are still shown.
        alive = watch.alive()
        # The next link of a chain is another job with another log: each says where its own lies.
        begun = [number for number in attempt_numbers(output) if number not in earlier]
        part = log_part(output, begun[-1]) if begun else None
        if part is not None and part.path != tail.path:
            tail = Tail(part.path, part.start)
        for line in tail.lines():
            if line.startswith((_PREFIX, "ERROR: ")):
                printer.message(line.removeprefix(_PREFIX))
        attempts = read_attempts(output)
        running = attempts[-1] if attempts and attempts[-1].reason is None else None
        progress = read_progress(running.folder) if running else {}
        if progress:
            printer.progress(format_progress(progress))
            if on_progress is not None:
                on_progress(progress)
        if alive:
            time.sleep(_POLL_SECONDS)
    printer.message("")
    if read_completed(output) is not None:
        return 0
    print(f"the run is not complete; its log: {tail.path}", file=sys.stderr)
    return 1
