"""Which job owns a run, from the run's lease, this machine and Slurm's queue."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.lease import Lease, read_lease, rewrite
from dlbhpc.scheduler.ledger import read_ledger
from dlbhpc.scheduler.processes import JOB_VARIABLE, ProcessId, marked
from dlbhpc.scheduler.queue import QueuedJob, SlurmError, read_queue

_QUEUE_SECONDS = 5.0


class Jobs:
    """Which leases are alive, from one look at this machine and at most one at Slurm's queue."""

    def __init__(self) -> None:
        self._by_token: dict[str, list[QueuedJob]] | None = None
        self._untagged: dict[str, QueuedJob] = {}

    def live(self, output: OutputLayout) -> Lease | None:
        """The lease of the job that owns the run now, if one does.

        Raises DlbhpcError naming them where more jobs carry its tag than were submitted.
        """
        lease = read_lease(output.lease)
        if lease is None or not self.is_alive(lease):
            return None
        job = self.queued(lease)
        if job is None or job.job_id == lease.job_id:
            return lease
        found = replace(lease, job_id=job.job_id)
        if not lease.job_id:
            # Its submission was killed before it could write the job down.
            ledger = read_ledger(output, lease.token)
            check_tagged(output, self.tagged(lease), ledger.wanted if ledger else 1)
            rewrite(output.lease, found)
        return found

    def is_alive(self, lease: Lease) -> bool:
        """Whether the job of a lease may still live; raises SlurmError when Slurm cannot tell.

        A process of another host counts as alive: nobody can see it from here.
        """
        if self.queued(lease) is not None:
            return True
        if lease.scheduler == "slurm" and lease.job_id:
            return False
        if lease.host != socket.gethostname():
            return True
        if ProcessId(lease.pid, lease.pid_started).alive():
            return True
        return lease.job_id != "" and bool(marked(JOB_VARIABLE, lease.job_id))

    def queued(self, lease: Lease) -> QueuedJob | None:
        """Slurm's job of a lease, found by its tag: the one that it names, else the one that runs
        or is to run next, as a link of a chain does behind a job that is gone."""
        tagged = self.tagged(lease)
        # Job ids are given out again, and each cluster has its own: the tag must be right as well.
        return next((job for job in tagged if job.job_id == lease.job_id), next(iter(tagged), None))

    def tagged(self, lease: Lease) -> list[QueuedJob]:
        """Every job of Slurm's that belongs to a lease, in the order in which they run."""
        if lease.scheduler != "slurm":
            return []
        if self._by_token is None:
            self._by_token = {}
            for job in read_queue().values():
                if job.token is not None:
                    self._by_token.setdefault(job.token, []).append(job)
                elif job.lost_its_tag:
                    self._untagged[job.job_id] = job
        found = self._by_token.get(lease.token, [])
        # Where a site's filter replaces comments, a job's own id and name must do.
        if not found and lease.job_id in self._untagged:
            found = [self._untagged[lease.job_id]]
        return sorted(found, key=_turn)


def check_tagged(output: OutputLayout, jobs: Sequence[QueuedJob], wanted: int) -> None:
    """Refuse a run of which sbatch made more jobs than it was asked for: only its user can choose.

    Raises DlbhpcError.
    """
    if len(jobs) > wanted:
        names = ", ".join(f"{job.job_id} ({job.state.lower()})" for job in jobs)
        raise DlbhpcError(
            f"Slurm has {len(jobs)} jobs of {output.folder}, submitted were {wanted}: {names}. "
            "End what is too much with scancel, then go on"
        )


def _turn(job: QueuedJob) -> tuple[bool, int]:
    return job.state == "PENDING", int(job.job_id.partition("_")[0])


def live_lease(output: OutputLayout) -> Lease | None:
    """The lease of the job that owns the run at this moment, if one does."""
    return Jobs().live(output)


class Watch:
    """Whether a run's job still lives, asked again and again: Slurm's controller only seldom.

    A controller that does not answer says nothing about the job, which then counts as alive.
    """

    def __init__(self, output: OutputLayout) -> None:
        self._output = output
        self._looked = 0.0
        self._interval = 0.0

    def alive(self) -> bool:
        if time.monotonic() - self._looked < self._interval:
            return True
        self._looked = time.monotonic()
        try:
            lease = live_lease(self._output)
        except SlurmError:
            return True
        self._interval = _QUEUE_SECONDS if lease and lease.scheduler == "slurm" else 0.0
        return lease is not None


def log_path(output: OutputLayout, job_id: str) -> Path:
    """Where submitit looks for what a job prints; the batch script names the same file.

    An array has one folder for the logs of all its elements, beside their own.
    """
    folder = array_of(output).job if "_" in job_id else output.job
    return folder / f"{job_id}_0_log.out"


def array_of(element: OutputLayout) -> OutputLayout:
    """Where an array keeps what its elements share: the folder that they lie in."""
    return OutputLayout(element.folder.parent)
