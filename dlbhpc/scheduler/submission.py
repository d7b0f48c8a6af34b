"""Submit a run: take its lease, write its records, hand its batch script to the scheduler."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import differing, write_bytes
from dlbhpc.layout import OutputLayout
from dlbhpc.run import completion
from dlbhpc.run.lease import Lease, acquire, read_lease, release, rewrite
from dlbhpc.run.record import Run, read_run, write_records
from dlbhpc.scheduler.processes import JOB_VARIABLE, ProcessId, marked
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import QueuedJob, SlurmError, read_queue
from dlbhpc.scheduler.sbatch import render
from dlbhpc.steps.names import FENCE

_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_LOOKUP_SECONDS = 10.0
_QUEUE_SECONDS = 5.0


@dataclass(frozen=True)
class Submitted:
    """A submitted job; its id is None when the run is complete already."""

    job_id: str | None
    taken_over: str | None = None


class Jobs:
    """Which leases are alive, from one look at this machine and at most one at Slurm's queue."""

    def __init__(self) -> None:
        self._queue: dict[str, QueuedJob] | None = None

    def live(self, output: OutputLayout) -> Lease | None:
        """The lease of the job that owns the run now, if one does."""
        lease = read_lease(output.lease)
        if lease is None or not self.is_alive(lease):
            return None
        job = self.queued(lease)
        if job is not None and not lease.job_id:
            # Its submission was killed before it could write the job down.
            lease = replace(lease, job_id=job.job_id)
            rewrite(output.lease, lease)
        return lease

    def is_alive(self, lease: Lease) -> bool:
        """Whether the job of a lease may still live; raises SlurmError when Slurm cannot tell.

        A process of another host counts as alive: nobody can see it from here.
        """
        if lease.scheduler == "slurm" and self.queued(lease) is not None:
            return True
        if lease.scheduler == "slurm" and lease.job_id:
            return False
        if lease.host != socket.gethostname():
            return True
        if ProcessId(lease.pid, lease.pid_started).alive():
            return True
        return lease.job_id != "" and bool(marked(JOB_VARIABLE, lease.job_id))

    def queued(self, lease: Lease) -> QueuedJob | None:
        """Slurm's job of a lease, found by its id or, when that is not known, by its tag."""
        if lease.scheduler != "slurm":
            return None
        if self._queue is None:
            self._queue = read_queue()
        if lease.job_id:
            job = self._queue.get(lease.job_id)
            # Job ids are given out again, and each cluster has its own.
            return job if job is not None and job.token == lease.token else None
        return next((job for job in self._queue.values() if job.token == lease.token), None)


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
    """Where submitit looks for what a job prints; the batch script names the same file."""
    return output.job / f"{job_id}_0_log.out"


def check_output(run: Run) -> bool:
    """Whether this very run is complete; refuses a folder that holds another run.

    Known identity is compared first, so that a finished run never starts its upstream.
    """
    output = run.launch.output
    completed = completion.read_completed(output)
    if completed is not None:
        completion.check_same_run(output, completed, dict(run.identity))
        completion.check_intact(output, completed, content=True)
        return True
    if output.run.exists():
        changed = differing(read_run(output).identity, run.identity)
        if changed:
            raise DlbhpcError(
                f"{output.folder} holds an unfinished run of another identity (it differs in "
                f"{', '.join(changed)}): submit as before, or choose another --output"
            )
    return False


def submit(run: Run, profile: Profile) -> Submitted:
    """Submit the run; a local job has begun to run when this returns.

    Raises LeaseHeld when a live job owns the run, and DlbhpcError when the job cannot be submitted.
    """
    output = run.launch.output
    if check_output(run):
        if not run.launch.resume:
            raise DlbhpcError(
                f"{output.folder} is complete, and --no-resume never overwrites that: "
                "choose another --output to train it again"
            )
        return Submitted(None)
    if profile.scheduler == "slurm" and shutil.which("sbatch") is None:
        raise DlbhpcError(
            f"the profile {profile.name} needs Slurm, and there is no sbatch on this machine: "
            "submit from a login node of the cluster, or train here with --cluster local"
        )
    if profile.scheduler == "slurm":
        try:
            read_queue()
        except SlurmError as error:
            raise DlbhpcError(
                f"Slurm does not answer here ({error}): submit from a login node of the cluster, "
                "or train on this machine with --cluster local"
            ) from error
    own = ProcessId.of(os.getpid())
    assert own is not None, "a running process has an entry in /proc"
    lease = Lease.new(profile.scheduler, "", own.pid, own.started)
    script = render(run.launch, profile, lease.token)
    output.folder.mkdir(parents=True, exist_ok=True)
    dead = acquire(output.lease, lease, Jobs().is_alive)
    # Again, now that nobody else can complete it.
    try:
        complete = check_output(run)
    except DlbhpcError:
        release(output.lease, lease.token)
        raise
    if complete:
        release(output.lease, lease.token)
        return Submitted(None)
    if not run.launch.resume:
        set_aside(output)
    output.job.mkdir(exist_ok=True)
    write_bytes(output.batch_script, script.encode())
    write_records(run)
    start = _start_slurm if profile.scheduler == "slurm" else _start_local
    job_id = start(output, lease, script)
    return Submitted(job_id, dead.owner if dead and dead.job_id else None)


def _start_local(output: OutputLayout, lease: Lease, script: str) -> str:
    from dlbhpc.scheduler.local import LocalBatch, LocalExecutor

    output.control.unlink(missing_ok=True)
    job = LocalExecutor(folder=output.job).submit(LocalBatch(output, lease.token))
    job_id: str = job.job_id

    def owned_by_the_job() -> bool:
        if job.done():
            raise DlbhpcError(f"the local job {job_id} did not start: read {job.paths.stdout}")
        held = read_lease(output.lease)
        return held is not None and held.job_id == job_id

    if not _within(_START_SECONDS, owned_by_the_job):
        raise DlbhpcError(f"the local job {job_id} does not start: read {job.paths.stdout}")
    return job_id


def _start_slurm(output: OutputLayout, lease: Lease, script: str) -> str:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from dlbhpc.scheduler.slurm import SlurmBatch, SlurmExecutor

    try:
        job_id: str = SlurmExecutor(output.job, script).submit(SlurmBatch(output)).job_id
    except (FailedJobError, FailedSubmissionError) as error:
        # The answer may have been lost although the job was made: a second one must not be.
        found: list[QueuedJob] = []

        def is_there() -> bool:
            job = Jobs().queued(lease)
            found.extend([job] if job else [])
            return job is not None

        if not _within(_LOOKUP_SECONDS, is_there, every=1.0):
            release(output.lease, lease.token)
            if not output.attempts.exists():
                # Nothing ever began here: other sizes may be tried in the same folder.
                output.run.unlink(missing_ok=True)
            raise DlbhpcError(f"sbatch refused the job: {error}") from error
        job_id = found[0].job_id
    held = read_lease(output.lease)
    # The job may have begun, and written its own name, before we came to write it.
    if held is not None and not held.job_id:
        rewrite(output.lease, replace(lease, job_id=job_id))
    return job_id


def set_aside(output: OutputLayout) -> Path | None:
    """Start afresh (--no-resume): move what earlier attempts left away; nothing is deleted."""
    # Attempts first: their numbers must not be given out again. The fence stays where it is, or a
    # ghost of an earlier attempt would count as the newest.
    steps = sorted(path for path in output.steps.glob("*") if path.name != FENCE)
    leftovers = [
        path
        for path in (
            output.attempts,
            *steps,
            output.checkpoints,
            output.evaluation,
            output.composed_config,
            output.provenance,
        )
        if path.exists()
    ]
    if not leftovers:
        return None
    number = 1
    while (aside := output.folder / "set_aside" / f"{number:03d}").exists():
        number += 1
    aside.mkdir(parents=True)
    for path in leftovers:
        target = aside / path.relative_to(output.folder)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    return aside


def _within(seconds: float, condition: Callable[[], bool], every: float = _POLL_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
