"""Slurm's own commands: the queue in one look, requeue, cancel, signal."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlbhpc.errors import DlbhpcError

TAG_PREFIX = "dlbhpc:"
"""A job's comment is this and its lease's token: an orphan is found by it."""

_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_INPUT_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SCANCEL_")
_FIELDS = "%i|%T|%r|%k"


class SlurmError(DlbhpcError):
    """A command of Slurm's failed, so that nothing is known."""


@dataclass(frozen=True)
class QueuedJob:
    """One job that Slurm still has in its queue: waiting, held, running, or about to end."""

    job_id: str
    state: str
    reason: str
    comment: str

    @property
    def token(self) -> str | None:
        prefix, tag = self.comment[: len(TAG_PREFIX)], self.comment[len(TAG_PREFIX) :]
        return tag if prefix == TAG_PREFIX else None


@dataclass(frozen=True)
class JobNow:
    """A job as the controller sees it at this moment; how often it was requeued in ``restarts``."""

    state: str
    reason: str
    restarts: int

    @property
    def is_being_cancelled(self) -> bool:
        """Whether somebody is ending it for good: a job that ran into its limit goes on later."""
        return self.state in ("CANCELLED", "COMPLETING") and self.reason != "TimeLimit"


@dataclass(frozen=True)
class Accounted:
    """How Slurm's accounting says that a job ended; ``seconds`` is how long it ran."""

    job_id: str
    state: str
    seconds: int | None


def slurm_command(*argv: str) -> str:
    """Run a command of Slurm's; returns its output, raises SlurmError with its own words."""
    # What the user's environment says of states or formats must not change an answer.
    unset = set(input_variables())
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except FileNotFoundError as error:
        raise SlurmError(f"{argv[0]} is not installed here: Slurm's commands are needed") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{argv[0]} did not answer within a minute: try again later") from error
    if done.returncode != 0:
        words = done.stderr.strip() or done.stdout.strip()
        raise SlurmError(f"{argv[0]} failed (exit status {done.returncode}): {words}")
    return done.stdout


def read_queue() -> dict[str, QueuedJob]:
    """The jobs in the queue by their id, with one call of squeue.

    Everybody's, hidden partitions included: a colleague's job in a shared folder is a job too.
    """
    lines = slurm_command("squeue", "--all", "--noheader", f"--format={_FIELDS}").splitlines()
    return {job.job_id: job for job in parse_queue(lines)}


def read_accounting(job_ids: Iterable[str]) -> dict[str, Accounted]:
    """How these jobs ended, by their id, with one call of sacct; raises SlurmError without one.

    A job that accounting does not know (yet) is left out: that says nothing about the job.
    """
    jobs = ",".join(_checked(job_id) for job_id in job_ids)
    fields = "--format=JobID,State,ElapsedRaw"
    lines = slurm_command(
        "sacct", "--allocations", "--noheader", "--parsable2", fields, f"--jobs={jobs}"
    ).splitlines()
    found = {}
    for line in lines:
        parts = line.split("|")
        if len(parts) == 3 and _JOB_ID.fullmatch(parts[0]):
            seconds = int(parts[2]) if parts[2].isdecimal() else None
            found[parts[0]] = Accounted(parts[0], parts[1], seconds)
    return found


def parse_queue(lines: Iterable[str]) -> list[QueuedJob]:
    """The jobs in what squeue printed; a line that is no job (a warning) is passed over."""
    jobs = []
    for line in lines:
        parts = line.split("|", 3)
        if len(parts) == 4 and _JOB_ID.fullmatch(parts[0]):
            jobs.append(QueuedJob(*(part.strip() for part in parts)))
    return jobs


def look_at(job_id: str) -> JobNow:
    """What the controller says of a job; where it says nothing, that is what is returned."""
    try:
        words = slurm_command("scontrol", "--oneliner", "show", "job", _checked(job_id)).split()
    except SlurmError:
        return JobNow("UNKNOWN", "", 0)
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    restarts = fields.get("Restarts", "0")
    return JobNow(
        state=fields.get("JobState", "UNKNOWN"),
        reason=fields.get("Reason", ""),
        restarts=int(restarts) if restarts.isdecimal() else 0,
    )


def requeue(job_id: str) -> str:
    """Put a running job back into the queue; returns a sentence that says how it went.

    Raises SlurmError when it is not going to run again.
    """
    try:
        slurm_command("scontrol", "requeue", _checked(job_id))
    except SlurmError as error:
        # Slurm's own preemption may have been faster.
        if "pending execution" in str(error):
            return f"Slurm has requeued job {job_id} already"
        raise
    return f"job {job_id} is requeued"


def cancel(job_id: str) -> None:
    """End a job; its tasks get TERM and then, after KillWait, KILL."""
    slurm_command("scancel", _checked(job_id))


def ask_to_stop(job_id: str) -> None:
    """Ask a job to save and leave, as a preemption would: USR2 to its batch shell."""
    slurm_command("scancel", "--batch", "--signal=USR2", _checked(job_id))


def own_job_id(environment: Mapping[str, str]) -> str | None:
    """The job that this process belongs to; an element of an array by both numbers.

    The bare id of an array names all of its elements.
    """
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID")


def input_variables() -> list[str]:
    """Variables that would silently change what sbatch does: those of a surrounding allocation."""
    kept = {"SLURM_CONF"}
    return sorted(key for key in os.environ if key.startswith(_INPUT_PREFIXES) and key not in kept)


def _checked(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise SlurmError(f"{job_id!r} is no Slurm job id")
    return job_id
