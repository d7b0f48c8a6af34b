"""Submit a run: take its lease, write its records, hand its batch script to the scheduler."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import differing, write_bytes
from dlbhpc.run import completion
from dlbhpc.run.lease import Lease, LeaseHeld, acquire, release
from dlbhpc.run.record import Run, read_run, write_records
from dlbhpc.run.teacher import same_run
from dlbhpc.scheduler.aside import set_aside
from dlbhpc.scheduler.ledger import Ledger
from dlbhpc.scheduler.processes import ProcessId
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import SlurmError, read_queue
from dlbhpc.scheduler.sbatch import render
from dlbhpc.scheduler.start import adopt, start_local, start_slurm
from dlbhpc.scheduler.submission import Jobs


@dataclass(frozen=True)
class Submitted:
    """What a submission made: the job (None when the run is complete already) and its links.

    ``adopted`` says that an earlier submission, which died, had made the job.
    """

    job_id: str | None
    taken_over: str | None = None
    links: tuple[str, ...] = ()
    adopted: bool = False


def check_output(run: Run) -> bool:
    """Whether this very run is complete; refuses a folder that holds another run.

    Known identity is compared first, so that a finished run never starts its upstream.
    """
    output = run.launch.output
    completed = completion.read_completed(output)
    if completed is not None:
        fields = same_run(completed["identity_fields"], run.identity)
        completion.check_same_run(
            output, {**completed, "identity_fields": fields}, dict(run.identity)
        )
        completion.check_intact(output, completed, content=True)
        return True
    if output.run.exists():
        recorded = read_run(output).identity
        changed = differing(recorded, same_run(run.identity, recorded))
        if changed:
            raise DlbhpcError(
                f"{output.folder} holds an unfinished run of another identity (it differs in "
                f"{', '.join(changed)}): submit as before, or choose another --output"
            )
    return False


def check_fresh(run: Run) -> None:
    """Refuse to train a complete run again (--no-resume). Raises DlbhpcError."""
    if not run.launch.resume:
        raise DlbhpcError(
            f"{run.launch.output.folder} is complete, and --no-resume never overwrites that: "
            "choose another --output to train it again"
        )


def submit(run: Run, profile: Profile, links: int = 0, after: Sequence[str] = ()) -> Submitted:
    """Submit the run; a local job has begun to run when this returns.

    ``links`` more jobs are queued behind it, each behind the one before, to take the run over
    where nothing of a job is alive to requeue it. The first waits until the jobs ``after`` are
    over, however they end. Both need Slurm.

    Raises LeaseHeld when a live job owns the run, and DlbhpcError when the job cannot be submitted.
    """
    output = run.launch.output
    if check_output(run):
        check_fresh(run)
        return Submitted(None)
    check_scheduler(profile, needs_slurm=bool(links or after))
    lease = new_lease(profile)
    script = render(run.launch, profile, lease.token)
    output.folder.mkdir(parents=True, exist_ok=True)
    try:
        dead = acquire(output.lease, lease, Jobs().is_alive)
    except LeaseHeld:
        adopted = adopt(output)
        if adopted is None:
            raise
        return Submitted(adopted[0], links=adopted[1:], adopted=True)
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
    if profile.scheduler == "slurm":
        jobs = start_slurm(output, lease, Ledger.new(lease.token, 1 + links), after)
    else:
        jobs = (start_local(output, lease),)
    return Submitted(jobs[0], dead.owner if dead and dead.job_id else None, jobs[1:])


def new_lease(profile: Profile, token: str = "") -> Lease:
    """A lease of this process, until the job that it submits writes its own name into it."""
    own = ProcessId.of(os.getpid())
    assert own is not None, "a running process has an entry in /proc"
    return Lease.new(profile.scheduler, "", own.pid, own.started, token)


def check_scheduler(profile: Profile, needs_slurm: bool = False) -> None:
    """Refuse, before anything is written, a profile whose scheduler is not there or cannot do it.

    Raises DlbhpcError.
    """
    if profile.scheduler != "slurm":
        if needs_slurm:
            raise DlbhpcError(
                f"the profile {profile.name} is this machine alone, which keeps no queue: "
                "--chain, --with-teacher and --seeds need a --cluster with Slurm; here, submit "
                "one run after the other with --follow"
            )
        return
    if shutil.which("sbatch") is None:
        raise DlbhpcError(
            f"the profile {profile.name} needs Slurm, and there is no sbatch on this machine: "
            "submit from a login node of the cluster, or train here with --cluster local"
        )
    try:
        read_queue()
    except SlurmError as error:
        raise DlbhpcError(
            f"Slurm does not answer here ({error}): submit from a login node of the cluster, "
            "or train on this machine with --cluster local"
        ) from error
