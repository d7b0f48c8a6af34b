"""``dlbhpc preempt``: preempt a local run, as Slurm would; it requeues and goes on."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dlbhpc.cli.runs import add_run_argument

    add_run_argument(parser)
    parser.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        help="time to save before the kill (default: the profile's)",
    )


def run(args: argparse.Namespace) -> int:
    return ask(args, "preempt")


def ask(args: argparse.Namespace, action: str) -> int:
    """Leave a request for the live local job of a run."""
    from dlbhpc.cli.runs import find_run
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.layout import Layout
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.control import Request, leave
    from dlbhpc.scheduler.submission import live_lease

    output = find_run(args.run, Layout.at(args.root))
    lease = live_lease(output)
    if lease is None or not lease.job_id:
        raise DlbhpcError(f"no job of {output.folder} is running: there is nothing to {action}")
    grace = read_run(output).grace_seconds if args.grace is None else args.grace
    if grace < 0:
        raise DlbhpcError(f"--grace is {grace}: it must not be negative")
    leave(output.control, Request(action, grace))
    print(f"asked job {lease.job_id} to stop ({action}, {grace:g} s to save)")
    return 0
