"""Submit a run: take its lease, write its records, hand its batch script to the scheduler."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run import completion
from dlbhpc.run.files import differing, write_bytes
from dlbhpc.run.lease import Lease, acquire, read_lease
from dlbhpc.run.record import Run, read_run, write_records
from dlbhpc.scheduler.processes import JOB_VARIABLE, ProcessId, marked

_START_SECONDS = 60.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Submitted:
    """A job that has started to run, or None when the run is complete already."""

    job_id: str | None
    taken_over: str | None = None


def is_alive(lease: Lease) -> bool:
    """Whether the job of a lease may still live; one of another host counts as alive."""
    if lease.host != socket.gethostname():
        return True
    if ProcessId(lease.pid, lease.pid_started).alive():
        return True
    return lease.job_id != "" and bool(marked(JOB_VARIABLE, lease.job_id))


def live_lease(output: OutputLayout) -> Lease | None:
    """The lease of the job that owns the run now, if one does."""
    lease = read_lease(output.lease)
    return lease if lease is not None and is_alive(lease) else None


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


def submit_local(run: Run, script: str) -> Submitted:
    """Start the run as a job of this machine; returns when the job owns the run.

    Raises LeaseHeld when a live job owns it, and DlbhpcError when the job does not start.
    """
    from dlbhpc.scheduler.local import LocalBatch, LocalExecutor

    output = run.launch.output
    own = ProcessId.of(os.getpid())
    assert own is not None, "a running process has an entry in /proc"
    output.folder.mkdir(parents=True, exist_ok=True)
    lease = Lease.new("local", "", own.pid, own.started)
    dead = acquire(output.lease, lease, is_alive)
    if check_output(run):
        return Submitted(None)
    if not run.launch.resume:
        set_aside(output)
    output.job.mkdir(exist_ok=True)
    write_bytes(output.batch_script, script.encode())
    output.control.unlink(missing_ok=True)
    write_records(run)
    executor = LocalExecutor(folder=output.job)
    job = executor.submit(LocalBatch(output, lease.token))
    deadline = time.monotonic() + _START_SECONDS
    while (held := read_lease(output.lease)) is not None and held.job_id != job.job_id:
        if job.done() or time.monotonic() > deadline:
            raise DlbhpcError(f"the local job {job.job_id} did not start: read {job.paths.stdout}")
        time.sleep(_POLL_SECONDS)
    return Submitted(job.job_id, dead.owner if dead and dead.job_id else None)


def set_aside(output: OutputLayout) -> Path | None:
    """Start afresh (--no-resume): move what earlier attempts left away; nothing is deleted."""
    leftovers = [
        path
        for path in (output.steps, output.checkpoints, output.attempts, output.evaluation)
        if path.exists()
    ]
    leftovers += [path for path in (output.composed_config, output.provenance) if path.exists()]
    if not leftovers:
        return None
    number = 1
    while (aside := output.folder / "set_aside" / f"{number:03d}").exists():
        number += 1
    aside.mkdir(parents=True)
    for path in leftovers:
        path.rename(aside / path.name)
    return aside
