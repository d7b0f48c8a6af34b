"""The jobs of one run that wait for each other: links of a chain, and a student for its teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.run.lease import read_lease, rewrite
from dlbhpc.run.record import read_run
from dlbhpc.run.teacher import is_pending
from dlbhpc.scheduler.ledger import read_ledger
from dlbhpc.scheduler.queue import QueuedJob, cancel, checked_id, slurm_command, submit_again
from dlbhpc.scheduler.submission import Jobs


def links_behind(output: OutputLayout, job_id: str) -> list[QueuedJob]:
    """The jobs that wait behind this one to take its run over, in their order.

    Slurm is only asked where the submission made any, or where nobody can say whether it did.
    Raises SlurmError.
    """
    lease = read_lease(output.lease)
    if lease is None:
        return []
    try:
        ledger = read_ledger(output, lease.token)
    except DlbhpcError:
        pass  # damaged
    else:
        if ledger is None or ledger.wanted == 1:
            return []
    return [job for job in Jobs().tagged(lease) if job.job_id != job_id]


def end_links(output: OutputLayout, job_id: str) -> list[str]:
    """Cancel the links behind this job, whose run ended for good; returns their ids.

    They would find that out by themselves, but only when the cluster has room for each of them.
    Raises SlurmError.
    """
    links = [job.job_id for job in links_behind(output, job_id)]
    # The last first, so that none begins because the one before it has gone.
    for link in reversed(links):
        cancel(link)
    return links


def teacher_jobs(output: OutputLayout) -> tuple[str, ...]:
    """The jobs that this run's teacher is still trained by; none when it is complete, or failed.

    Raises SlurmError when Slurm cannot say, and DlbhpcError when they are none of Slurm's.
    """
    run = read_run(output)
    if run.teacher_run is None or not is_pending(run.identity):
        return ()
    return unfinished_jobs(OutputLayout(run.teacher_run))


def unfinished_jobs(output: OutputLayout) -> tuple[str, ...]:
    """The live jobs of a run that is not complete. Raises as :func:`teacher_jobs` does."""
    if read_completed(output) is not None:
        return ()
    jobs = Jobs()
    lease = jobs.live(output)
    if lease is None:
        return ()
    found = tuple(job.job_id for job in jobs.tagged(lease))
    if not found:
        raise DlbhpcError(
            f"the teacher {output.folder} belongs to {lease.owner}, which Slurm cannot wait for: "
            "submit this run when that is complete"
        )
    return found


def take_turns(output: OutputLayout, job_id: str) -> str:
    """Let the run go on in another job than this one, which Slurm will not run again.

    A link that waits behind it is that job; else the run's script is submitted once more, behind
    this job: should Slurm requeue it after all, the two still take turns. An element of an array
    goes on as a job by itself. Returns a sentence that names the job. Raises SlurmError.
    """
    links = links_behind(output, job_id)
    if links:
        return f"job {links[0].job_id}, which waited behind it, goes on"
    return f"submitted again as {submit_again(output.batch_script, [job_id])}"


def wait_behind(output: OutputLayout, job_id: str, jobs: Sequence[str]) -> str:
    """Let the run wait until the jobs are over, however they end; returns the job that waits.

    A running job cannot be given a dependency, and one that requeues itself is killed before it
    could be: a link takes its place where there is one, else the script is submitted once more,
    under the same lease. Raises SlurmError.
    """
    # Behind this job too, as in take_turns.
    after = [*jobs, job_id]
    links = links_behind(output, job_id)
    if links:
        waiting = links[0].job_id
        dependency = f"Dependency=afterany:{':'.join(map(checked_id, after))}"
        slurm_command("scontrol", "update", f"JobId={waiting}", dependency)
    else:
        waiting = submit_again(output.batch_script, after)
    lease = read_lease(output.lease)
    if lease is not None:
        rewrite(output.lease, replace(lease, job_id=waiting))
    return waiting
