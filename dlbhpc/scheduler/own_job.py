"""The job that this process runs in, and the lease that it holds."""

from __future__ import annotations

from collections.abc import Mapping

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.attempt import Job
from dlbhpc.run.lease import Lease, LeaseHeld, read_lease, rewrite
from dlbhpc.scheduler.processes import JOB_VARIABLE, RESTART_VARIABLE, TOKEN_VARIABLE
from dlbhpc.scheduler.queue import own_job_id


def own_job(environment: Mapping[str, str]) -> Job:
    """The job as its scheduler names it; raises DlbhpcError outside of one.

    A local job is looked for first: it may have been started from within an allocation of Slurm's.
    """
    token = environment.get(TOKEN_VARIABLE, "")
    local = environment.get(JOB_VARIABLE)
    if local is not None:
        return Job(local, int(environment.get(RESTART_VARIABLE, "0")), submission=token)
    slurm = own_job_id(environment)
    if slurm is None:
        raise DlbhpcError("this belongs into a batch job: `dlbhpc submit` makes one")
    # Slurm leaves the count unset in the first attempt.
    return Job(
        slurm,
        int(environment.get("SLURM_RESTART_COUNT") or "0"),
        "slurm",
        submission=token,
        node_list=environment.get("SLURM_JOB_NODELIST", ""),
    )


def own_lease(output: OutputLayout, environment: Mapping[str, str]) -> None:
    """Make sure that this job owns the run; raises LeaseHeld naming the owner when it does not.

    A job of Slurm's writes its own id down here, since its submission may have been killed first.
    """
    lease = read_lease(output.lease)
    if lease is None:
        raise LeaseHeld(f"{output.lease} is gone: this job does not own the run")
    if lease.token != environment.get(TOKEN_VARIABLE):
        raise LeaseHeld(f"{output.folder} belongs to {lease.owner}, not to this job")
    if lease.scheduler == "slurm":
        job_id = own_job(environment).job_id
        rewrite(output.lease, Lease.new("slurm", job_id, 0, "", lease.token))
