"""The jobs of one run that wait for each other: links of a chain, and a student for its teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.run.lease import read_lease, rewrite
from dlbhpc.run.record import read_run
from dlbhpc.run.teacher import is_pending
from dlbhpc.scheduler.ledger import read_ledger
from dlbhpc.scheduler.queue import QueuedJob, cancel, slurm_command, submit_again
from dlbhpc.scheduler.submission import Jobs, array_of


def links_behind(output: OutputLayout, job_id: str) -> list[QueuedJob]:
    """The jobs that wait behind this one to take its run over, in their order.

    Slurm is only asked where the submission made any. Raises SlurmError.
    """
    lease = read_lease(output.lease)
    if lease is None:
        return []
    ledger = read_ledger(output, lease.token)
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

    A link that waits behind it is that job; else its script is submitted once more. Returns a
    sentence that names the job. Raises SlurmError.
    """
    links = links_behind(output, job_id)
    if links:
        return f"job {links[0].job_id}, which waited behind it, goes on"
    return f"submitted again as {submit_again(job_id, script_of(output, job_id))}"


def wait_behind(output: OutputLayout, job_id: str, jobs: Sequence[str]) -> str:
    """Let the run wait until the jobs are over, however they end; returns the job that waits.

    A running job cannot be given a dependency, and one that requeues itself is killed before it
    could be: a link takes its place where there is one, else the script is submitted once more,
    under the same lease. Raises SlurmError.
    """
    dependency = f"afterany:{':'.join(jobs)}"
    links = links_behind(output, job_id)
    if links:
        waiting = links[0].job_id
        slurm_command("scontrol", "update", f"JobId={waiting}", f"Dependency={dependency}")
    else:
        script = script_of(output, job_id)
        waiting = submit_again(job_id, script, f"--dependency={dependency}")
    lease = read_lease(output.lease)
    if lease is not None:
        rewrite(output.lease, replace(lease, job_id=waiting))
    return waiting


def script_of(output: OutputLayout, job_id: str) -> Path:
    """The batch script of a job of this run; the elements of an array share one."""
    return (array_of(output) if "_" in job_id else output).batch_script
