"""``dlbhpc preempt``: preempt a run, as a scheduler would; it requeues and goes on."""

from __future__ import annotations

import argparse
import math


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dlbhpc.cli.runs import add_run_argument

    add_run_argument(parser)
    parser.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        help="local jobs: time to save before the kill (default: the profile's)",
    )


def run(args: argparse.Namespace) -> int:
    return ask(args, "preempt")


def ask(args: argparse.Namespace, action: str) -> int:
    """Ask the live job of a run to stop: a local one by a request, Slurm's by its commands."""
    from dlbhpc.cli.runs import find_run
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.layout import Layout
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler import queue
    from dlbhpc.scheduler.control import (
        CANCEL,
        Request,
        leave,
        mark_cancelled,
        mark_preempted,
        take_preempted,
        unmark_cancelled,
    )
    from dlbhpc.scheduler.processes import ProcessId
    from dlbhpc.scheduler.submission import Jobs, live_lease

    output = find_run(args.run, Layout.at(args.root))
    lease = live_lease(output)
    if lease is None or not lease.job_id:
        raise DlbhpcError(f"no job of {output.folder} is running: there is nothing to {action}")
    grace = read_run(output).grace_seconds if args.grace is None else args.grace
    if not 0 <= grace < math.inf:
        raise DlbhpcError(f"--grace is {grace}: it must be a number of seconds from 0 on")
    unattended = not ProcessId(lease.pid, lease.pid_started).alive()
    if lease.scheduler == "local" and unattended and action == CANCEL:
        from dlbhpc.scheduler.local import end_unattended

        mark_cancelled(output.job, lease.job_id)
        end_unattended(lease.job_id, grace)
    elif lease.scheduler == "local" and unattended:
        raise DlbhpcError(
            f"the process that would requeue job {lease.job_id} is gone: dlbhpc cancel "
            f"{output.folder}, then submit again"
        )
    elif lease.scheduler == "local":
        leave(output.control, Request(action, grace))
    elif args.grace is not None:
        raise DlbhpcError("--grace is for local jobs: Slurm's own configuration decides there")
    elif action == CANCEL:
        mark_cancelled(output.job, lease.job_id)
        try:
            # The last of a chain first, so that no link begins because the one before it has gone.
            for job in reversed(Jobs().tagged(lease)):
                queue.cancel(job.job_id)
        except queue.SlurmError:
            unmark_cancelled(output.job, lease.job_id)
            raise
    else:
        queued = Jobs().queued(lease)
        if queued is None or queued.state != "RUNNING":
            state = queued.state.lower() if queued else "gone"
            raise DlbhpcError(f"job {lease.job_id} is {state}: only a running one can save")
        mark_preempted(output.job, lease.job_id)
        try:
            queue.ask_to_stop(lease.job_id)
        except queue.SlurmError:
            take_preempted(output.job, lease.job_id)
            raise
    print(f"asked job {lease.job_id} to stop ({action})")
    return 0
