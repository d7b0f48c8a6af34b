"""Where an attempt's words go: its part of the job's log, and a file for each further rank.

Rank 0 speaks for all in the job's log. What the other ranks print (warnings that all print alike,
and now and then the error that counts) goes to files of their own beside the attempt's records.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.layout import OutputLayout
from dlbhpc.run.history import read_record

_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2
_TAIL_LINES = 20
_TAIL_BYTES = 1 << 16
_MOST_RANKS = 3

# srun says "srun: error: n1: tasks 1,3: Exited with exit code 1"; spawn says the same of itself.
_ENDED = re.compile(r"error: (?:\S+: )?tasks? ([0-9,-]+): (.+)")
# These words are said of the tasks that were ended since another had failed.
_ENDED_BY_US = ("Terminated", "Killed")


@dataclass(frozen=True)
class LogPart:
    """One attempt's part of a log, in bytes from ``start`` up to ``stop`` (None: the end)."""

    path: Path
    start: int
    stop: int | None = None


def own_log(descriptor: int = _STANDARD_ERROR) -> dict[str, object] | None:
    """Where this process's messages go and how long the file is now, for the attempt's record.

    None where they go to no file (a terminal, a pipe). The scheduler chose the name: read it from
    the open file, so that no two places have to compute the same.
    """
    try:
        status = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return None
    return {"path": str(path), "offset": status.st_size} if stat.S_ISREG(status.st_mode) else None


def log_part(output: OutputLayout, number: int) -> LogPart | None:
    """The part of the log that an attempt wrote; None where its record does not say.

    A requeued job appends to one file, so the part ends where the next attempt's begins.
    """
    own = _recorded(output, number)
    if own is None:
        return None
    later = [other for other in attempt_numbers(output) if other > number]
    following = (_recorded(output, other) for other in later)
    stop = next((part.start for part in following if part and part.path == own.path), None)
    return LogPart(own.path, own.start, stop)


def attempt_numbers(output: OutputLayout) -> list[int]:
    """The numbers of the attempts that have a folder, oldest first."""
    names = (folder.name for folder in output.attempts.glob("[0-9]*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _recorded(output: OutputLayout, number: int) -> LogPart | None:
    log = read_record(output.attempt(number) / "attempt.json").get("log")
    if not isinstance(log, dict) or not isinstance(log.get("offset"), int):
        return None
    path = Path(str(log.get("path")))
    # The run's folder may have been moved, or be mounted elsewhere on this host.
    return LogPart(path if path.exists() else output.job / path.name, log["offset"])


def rank_log(folder: Path, rank: int) -> Path:
    """The file that a rank above 0 of the attempt in this folder prints to."""
    return folder / f"rank-{rank}.log"


def rank_of(environment: Mapping[str, str]) -> int:
    """The rank of a task in the variables of srun, or else of the local launcher."""
    rank = environment.get("SLURM_PROCID") or environment.get("LOCAL_RANK") or "0"
    return int(rank) if rank.isdecimal() else 0


def speak_apart(folder: Path, rank: int) -> None:
    """Let this process and what it becomes print to its rank's file; rank 0 stays in the log.

    Where that file cannot be opened, the words stay in the job's log, rather than nowhere.
    """
    if rank == 0:
        return
    try:
        file = os.open(rank_log(folder, rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return
    os.dup2(file, _STANDARD_OUTPUT)
    os.dup2(file, _STANDARD_ERROR)
    os.close(file)


def failed_ranks(text: str) -> list[int]:
    """The tasks that failed by themselves, as the launcher's words in a log name them."""
    said = [(match[1], match[2]) for match in _ENDED.finditer(text)]
    by_themselves = [tasks for tasks, words in said if not words.startswith(_ENDED_BY_US)]
    first = by_themselves[:1] or [tasks for tasks, _ in said[:1]]
    return _numbers(first[0]) if first else []


def end_of_log(output: OutputLayout, number: int) -> str:
    """The end of what an attempt wrote into its job's log; "" where that cannot be read."""
    part = log_part(output, number)
    return _tail(part.path, part.start) if part else ""


def last_words_of_failed_ranks(output: OutputLayout, number: int) -> list[str]:
    """The last lines of the ranks above 0 that failed, so that no error is hidden in a file."""
    lines = []
    ranks = [rank for rank in failed_ranks(end_of_log(output, number)) if rank > 0]
    for rank in ranks[:_MOST_RANKS]:
        path = rank_log(output.attempt(number), rank)
        words = _tail(path).splitlines()[-_TAIL_LINES:]
        if words:
            lines += [f"rank {rank} failed; the end of {path}:", *(f"  {word}" for word in words)]
    return lines


def _tail(path: Path, start: int = 0) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _numbers(listed: str) -> list[int]:
    """1,3-5 as [1, 3, 4, 5]."""
    numbers: list[int] = []
    for word in listed.split(","):
        first, _, last = word.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            numbers += range(int(first), int(last or first) + 1)
    return numbers
