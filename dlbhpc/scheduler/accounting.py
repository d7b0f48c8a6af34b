"""Slurm's accounting: how the executions of jobs ended that the queue has forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlbhpc.scheduler.queue import JOB_ID, SlurmError, slurm_command


@dataclass(frozen=True)
class Accounted:
    """One job in the accounting. ``states`` has one state for each execution, oldest first.

    Slurm keeps one record for each time that it requeued the job: the first says how the attempt
    with restart count 0 ended, and so on. ``seconds`` is how long the newest one ran, None where
    that is not known.
    """

    job_id: str
    states: tuple[str, ...]
    seconds: int | None = None

    @property
    def state(self) -> str:
        """The state of the newest execution."""
        return self.states[-1]

    def state_of(self, restart_count: int) -> str | None:
        """How the execution with this restart count ended; None where there is no record of it."""
        return self.states[restart_count] if restart_count < len(self.states) else None


def read_accounting(job_ids: Iterable[str]) -> dict[str, Accounted]:
    """What the accounting knows of these jobs, with one call of sacct (none for no jobs).

    A job that is not in the answer is one of which nothing is known: records lag behind, and a
    site may have no accounting, or its daemon may be down. That is never an error, nor an end.
    """
    wanted = sorted({job_id for job_id in job_ids if JOB_ID.fullmatch(job_id)})
    if not wanted:
        return {}
    try:
        answer = slurm_command(
            "sacct", "--noheader", "--parsable2", "--allocations", "--duplicates",
            "--format=JobID,State,ElapsedRaw", f"--jobs={','.join(wanted)}",
        )  # fmt: skip
    except SlurmError:
        return {}
    return parse_accounting(answer.splitlines())


def parse_accounting(lines: Iterable[str]) -> dict[str, Accounted]:
    """The jobs in what sacct printed; a line that is no job's (a warning) is passed over."""
    found: dict[str, Accounted] = {}
    for line in lines:
        job_id, _, rest = line.strip().partition("|")
        state, _, elapsed = rest.partition("|")
        # "CANCELLED by 1000", and in some versions "CANCELLED+".
        words = state.replace("+", " ").split()
        if words and JOB_ID.fullmatch(job_id):
            earlier = found[job_id].states if job_id in found else ()
            seconds = int(elapsed) if elapsed.isdecimal() else None
            found[job_id] = Accounted(job_id, (*earlier, words[0]), seconds)
    return found
