"""Make the jobs of a run whose lease is taken and whose records are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.lease import Lease, acquire, read_lease, release, rewrite
from dlbhpc.scheduler.ledger import Ledger, read_ledger, write_ledger
from dlbhpc.scheduler.queue import QueuedJob, after_any
from dlbhpc.scheduler.submission import Jobs, check_tagged

_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
LOOKUP_SECONDS = 10.0
"""How long Slurm's queue is searched for a job whose sbatch gave no answer."""


class SubmissionRefused(DlbhpcError):
    """sbatch made no job; its own words say why."""


def start_local(output: OutputLayout, lease: Lease) -> str:
    """Start the run's job on this machine; returns its id when it has begun."""
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


def start_slurm(
    output: OutputLayout, lease: Lease, ledger: Ledger, after: Sequence[str] = ()
) -> tuple[str, ...]:
    """Submit the run's batch script, and its links behind it; returns the jobs in their order.

    The first waits until the jobs ``after`` are over. Raises DlbhpcError when sbatch refuses.
    """
    write_ledger(output, ledger)
    try:
        job_id = _sbatch(output, lease, ledger, after)
    except SubmissionRefused:
        give_back(output, lease)
        raise
    note_job(output, lease, job_id)
    return _queue_links(output, lease, ledger.with_jobs(job_id))


def give_back(output: OutputLayout, lease: Lease) -> None:
    """Undo a submission of which no job was made."""
    if not output.attempts.exists():
        # Nothing ever began here: other sizes may be tried in the same folder.
        output.run.unlink(missing_ok=True)
    # Last: from here on another submission may write its own records.
    release(output.lease, lease.token)


def note_job(output: OutputLayout, lease: Lease, job_id: str) -> None:
    """Write the job into the lease, unless it has begun and done so before."""
    held = read_lease(output.lease)
    if held is not None and held.token == lease.token and not held.job_id:
        rewrite(output.lease, replace(lease, job_id=job_id))


def adopt(output: OutputLayout) -> tuple[str, ...] | None:
    """Make whole what a submission left that died: its jobs are found by their tag.

    Returns the run's jobs in their order; None when no submission died here.
    """
    lease = Jobs().live(output)
    ledger = read_ledger(output, lease.token) if lease else None
    if lease is None or ledger is None or not ledger.abandoned():
        return None
    mine = Ledger.new(lease.token, ledger.wanted)
    lock = Lease.new("local", "", mine.submitter.pid, mine.submitter.started)
    path = output.job / "submission.lock"
    acquire(path, lock, Jobs().is_alive)
    try:
        tagged = Jobs().tagged(lease)
        check_tagged(output, tagged, ledger.wanted)
        jobs = (*ledger.jobs, *(job.job_id for job in tagged))
        return _queue_links(output, lease, mine.with_jobs(*jobs))
    finally:
        release(path, lock.token)


def _queue_links(output: OutputLayout, lease: Lease, ledger: Ledger) -> tuple[str, ...]:
    """Submit what the ledger misses, each behind the one before, and write each down."""
    write_ledger(output, ledger)
    for _ in range(ledger.missing):
        try:
            link = _sbatch(output, lease, ledger, ledger.jobs[-1:])
        except SubmissionRefused as error:
            write_ledger(output, replace(ledger, wanted=len(ledger.jobs)))
            raise DlbhpcError(
                f"{output.folder} is submitted as {', '.join(ledger.jobs)}, with fewer links than "
                f"asked for: {error}"
            ) from error
        ledger = ledger.with_jobs(link)
        write_ledger(output, ledger)
    return ledger.jobs


def _sbatch(output: OutputLayout, lease: Lease, ledger: Ledger, after: Sequence[str]) -> str:
    """Submit the run's batch script once; returns the job's id. Raises SubmissionRefused.

    The links share one script: only what they wait for differs, so it is said beside it. afterany,
    since a job that is requeued is not over, and afterok would wait for ever on one that failed.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from dlbhpc.scheduler.slurm import SlurmBatch, SlurmExecutor

    script = output.batch_script.read_text(encoding="utf-8")
    options = [after_any(after)] if after else []
    try:
        executor = SlurmExecutor(output.job, script, options)
        job_id: str = executor.submit(SlurmBatch(output)).job_id
    except (FailedJobError, FailedSubmissionError) as error:
        found = find_lost(lease, ledger.jobs)
        check_tagged(output, found, 1)
        if not found:
            raise SubmissionRefused(f"sbatch refused the job: {error}") from error
        job_id = found[0].job_id
    return job_id


def find_lost(lease: Lease, known: Sequence[str]) -> list[QueuedJob]:
    """Jobs of a lease besides the known ones: sbatch's answer may be lost although it made one."""
    found: list[QueuedJob] = []

    def is_there() -> bool:
        found[:] = [job for job in Jobs().tagged(lease) if job.job_id not in known]
        return bool(found)

    _within(LOOKUP_SECONDS, is_there, every=1.0)
    return found


def _within(seconds: float, condition: Callable[[], bool], every: float = _POLL_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
