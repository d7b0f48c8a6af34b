"""Slurm's own commands: the queue in one look, requeue, cancel, signal."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError

TAG_PREFIX = "dlbhpc:"
"""A job's comment is this and its lease's token: an orphan is found by it."""

NAME_PREFIX = "dlbhpc-"
"""Every job's name begins with this."""

JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_TAG = re.compile(rf"\b{TAG_PREFIX}(\w+)")
_INPUT_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SCANCEL_")
_FIELDS = "%i|%T|%r|%j|%k"
_HELD_STATES = ("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_MEANWHILE = ("unable to contact", "timed out", "zero bytes", "not connected", "in standby mode")
"""What Slurm's commands say when its controller is busy or restarted: it may answer later."""
_REFUSALS = ("permission denied", "disabled", "not supported")
_RETRY_SECONDS = 2.0


class SlurmError(DlbhpcError):
    """A command of Slurm's failed, so that nothing is known."""


class RequeueRefused(SlurmError):
    """Slurm will not put the job back into the queue."""


@dataclass(frozen=True)
class QueuedJob:
    """One job that Slurm still has in its queue: waiting, held, running, or about to end."""

    job_id: str
    state: str
    reason: str
    name: str
    comment: str

    @property
    def is_held(self) -> bool:
        """Whether it waits until somebody releases it."""
        return self.state in _HELD_STATES or "held" in self.reason.lower()

    @property
    def token(self) -> str | None:
        """The lease that the job runs under.

        An array has one comment for all of its elements, whose leases add their number to it. A
        site's filter may have put words of its own around the tag.
        """
        tag = _TAG.search(self.comment)
        if tag is None:
            return None
        element = self.job_id.partition("_")[2]
        return f"{tag[1]}_{element}" if element else tag[1]

    @property
    def lost_its_tag(self) -> bool:
        """Whether it is a job of ours whose comment a site's filter has replaced."""
        return self.token is None and self.name.startswith(NAME_PREFIX)


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
    Elements of an array each by itself, also those that wait.
    """
    command = ("squeue", "--all", "--array", "--noheader", f"--format={_FIELDS}")
    lines = slurm_command(*command).splitlines()
    return {job.job_id: job for job in parse_queue(lines)}


def parse_queue(lines: Iterable[str]) -> list[QueuedJob]:
    """The jobs in what squeue printed; a line that is no job (a warning) is passed over."""
    jobs = []
    for line in lines:
        # Of our jobs only the comment may hold a bar.
        parts = line.split("|", 4)
        if len(parts) == 5 and JOB_ID.fullmatch(parts[0]):
            jobs.append(QueuedJob(*(part.strip() for part in parts)))
    return jobs


def requeue(job_id: str, patience: float = 60.0) -> str:
    """Put a running job back into the queue; returns a sentence that says how it went.

    A controller that does not answer, as while it is restarted, is asked again for ``patience``
    seconds. Raises RequeueRefused where Slurm will not, SlurmError where nothing is known.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            slurm_command("scontrol", "requeue", checked_id(job_id))
        except SlurmError as error:
            words = str(error).lower()
            # Slurm's own preemption may have been faster.
            if "pending execution" in words:
                return f"Slurm has requeued job {job_id} already"
            if any(refusal in words for refusal in _REFUSALS):
                raise RequeueRefused(str(error)) from error
            later = any(meanwhile in words for meanwhile in _MEANWHILE)
            if not later or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return f"job {job_id} is requeued"


def submit_again(batch_script: Path, after: Iterable[str]) -> str:
    """Submit a run's script once more, to run when the jobs ``after`` are over, however they end.

    Returns the new job's id.
    """
    answer = slurm_command("sbatch", "--parsable", after_any(after), str(batch_script))
    return answer.strip().partition(";")[0]


def after_any(jobs: Iterable[str]) -> str:
    """sbatch's option to wait for jobs: a job that is requeued is not over, a failed one is."""
    return f"--dependency=afterany:{':'.join(map(checked_id, jobs))}"


def release_hold(job_id: str) -> None:
    """Let a held job run."""
    slurm_command("scontrol", "release", checked_id(job_id))


def cancel(job_id: str) -> None:
    """End a job; its tasks get TERM and then, after KillWait, KILL."""
    slurm_command("scancel", checked_id(job_id))


def ask_to_stop(job_id: str) -> None:
    """Ask a job to save and leave, as a preemption would: USR2 to its batch shell."""
    slurm_command("scancel", "--batch", "--signal=USR2", checked_id(job_id))


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


def checked_id(job_id: str) -> str:
    """The id, as one that a command may be given; raises SlurmError where it is none."""
    if not JOB_ID.fullmatch(job_id):
        raise SlurmError(f"{job_id!r} is no Slurm job id")
    return job_id
