"""``dlbhpc preempt``: preempt a run, as a scheduler would; it requeues and goes on."""

from __future__ import annotations

import argparse


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
    from dlbhpc.scheduler.control import CANCEL, Request, leave, mark_cancelled
    from dlbhpc.scheduler.submission import live_lease

    output = find_run(args.run, Layout.at(args.root))
    lease = live_lease(output)
    if lease is None or not lease.job_id:
        raise DlbhpcError(f"no job of {output.folder} is running: there is nothing to {action}")
    grace = read_run(output).grace_seconds if args.grace is None else args.grace
    if grace < 0:
        raise DlbhpcError(f"--grace is {grace}: it must not be negative")
    if lease.scheduler == "local":
        leave(output.control, Request(action, grace))
    elif args.grace is not None:
        raise DlbhpcError("--grace is for local jobs: Slurm's own configuration decides there")
    elif action == CANCEL:
        mark_cancelled(output.job, lease.job_id)
        queue.cancel(lease.job_id)
    else:
        queue.ask_to_stop(lease.job_id)
    print(f"asked job {lease.job_id} to stop ({action})")
    return 0
