"""``dlbhpc requeue``: let a run go on that has stopped, as it was submitted."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dlbhpc.cli.runs import add_run_argument

    add_run_argument(parser)


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from dlbhpc.cli.runs import find_run
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.layout import Layout
    from dlbhpc.records import from_plain
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.profile import Profile, load_profile
    from dlbhpc.scheduler.queue import release_hold
    from dlbhpc.scheduler.submission import Jobs
    from dlbhpc.scheduler.submit import submit

    output = find_run(args.run, Layout.at(args.root))
    jobs = Jobs()
    lease = jobs.live(output)
    job = jobs.queued(lease) if lease else None
    if job is not None and job.is_held:
        release_hold(job.job_id)
        print(f"job {job.job_id} was held ({job.reason}) and is released")
        return 0
    if lease is not None:
        raise DlbhpcError(
            f"{output.folder} belongs to {lease.owner}, which is still alive: it needs no requeue "
            f"(to save and run again at once: dlbhpc preempt {output.folder})"
        )
    recorded = read_run(output)
    # Earlier steps are what this is about, also where the run began with --no-resume.
    again = replace(recorded, launch=replace(recorded.launch, resume=True))
    if recorded.cluster:
        profile = from_plain(Profile, recorded.cluster, f"{output.run}: cluster")
    else:
        profile = load_profile(recorded.profile, args.root)
    submitted = submit(again, profile)
    if submitted.job_id is None:
        print(f"already complete: {recorded.launch.selected_checkpoint}")
    else:
        print(f"submitted {output.folder} again as {submitted.job_id}")
    return 0
