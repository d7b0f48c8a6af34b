"""Processes of this machine: whether one still lives, and which belong to a local job (Linux)."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

JOB_VARIABLE = "DLBHPC_LOCAL_JOB"
"""Environment variable that marks every process of a local job: the job's id."""

STEP_VARIABLE = "DLBHPC_LOCAL_STEP"
"""Environment variable that marks the tasks of a local job and all that they start."""

RESTART_VARIABLE = "DLBHPC_RESTART_COUNT"
"""Environment variable: how often the local job was requeued (SLURM_RESTART_COUNT's twin)."""

TOKEN_VARIABLE = "DLBHPC_LEASE_TOKEN"
"""Environment variable: the lease that the job runs under."""

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """A process for ever: its number alone is given out again, with its start time it is not."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has the number now, or None; a zombie counts as gone."""
        try:
            text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return None
        # The command's name stands in parentheses and may hold anything, blanks included.
        state, *rest = text.rpartition(")")[2].split()
        if state in "ZX":
            return None
        return cls(pid, f"{boot}/{rest[18]}")

    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self


def marked(variable: str, value: str) -> list[int]:
    """Numbers of the processes that were started with ``variable=value`` in their environment."""
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def send(pids: list[int], signum: signal.Signals) -> None:
    """Send a signal to each; one that has gone meanwhile is no error."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass
