"""``dlbhpc attempt``: the parts of one attempt, called by the batch script."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.exit_status import FENCED, REQUEUE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    begin = actions.add_parser("begin", help="once, before the tasks: prints the attempt's folder")
    begin.add_argument("output", type=Path, help="the run's folder")
    task = actions.add_parser("task", help="one task: becomes the training program")
    task.add_argument("attempt", type=Path, help="the attempt's folder")
    spawn = actions.add_parser("spawn", help="start all tasks on this machine, as srun would")
    spawn.add_argument("attempt", type=Path, help="the attempt's folder")
    spawn.add_argument("--ntasks", type=int, required=True)
    end = actions.add_parser("end", help="once, after the tasks: completes the run or says why not")
    end.add_argument("attempt", type=Path, help="the attempt's folder")
    end.add_argument("--status", type=int, required=True, help="the tasks' exit status")


def run(args: argparse.Namespace) -> int:
    if args.action == "begin":
        return _begin(args.output)
    if args.action == "task":
        return _task(args.attempt)
    if args.action == "spawn":
        return _spawn(args.attempt, args.ntasks)
    return _end(args.attempt, args.status)


def _say(text: str) -> None:
    # Standard output carries the attempt's folder to the batch script; people read the log.
    print(f"dlbhpc: {text}", file=sys.stderr, flush=True)


def _begin(folder: Path) -> int:
    from dlbhpc.layout import OutputLayout
    from dlbhpc.run.attempt import begin
    from dlbhpc.run.lease import LeaseHeld
    from dlbhpc.run.log import own_log
    from dlbhpc.scheduler.own_job import own_job, own_lease

    output = OutputLayout(folder)
    log = own_log()
    try:
        own_lease(output, os.environ)
    except LeaseHeld as error:
        _say(f"{error}: nothing was started")
        return FENCED
    attempt = begin(output, replace(own_job(os.environ), log=log), _say)
    if attempt is not None:
        print(attempt, flush=True)
    return 0


def _task(folder: Path) -> int:
    from dlbhpc.run.attempt import task_command, upstream_environment
    from dlbhpc.run.log import rank_of, speak_apart
    from dlbhpc.scheduler.scratch import scratch_environment

    _preflight(folder)
    argv, environment, working_directory = task_command(folder)
    os.chdir(working_directory)
    base = os.environ | scratch_environment(os.environ)
    speak_apart(folder, rank_of(os.environ))
    try:
        os.execvpe(argv[0], argv, upstream_environment(base, environment))
    except OSError as error:
        raise DlbhpcError(f"cannot execute {argv[0]}: {error.strerror}") from error


def _preflight(folder: Path) -> None:
    from dlbhpc.layout import OutputLayout
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.preflight import check_task
    from dlbhpc.scheduler.sbatch import tasks_per_node

    launch = read_run(OutputLayout(folder.parent.parent)).launch
    ntasks = tasks_per_node(launch) * launch.geometry.nodes
    cpus = len(os.sched_getaffinity(0))
    said = check_task(os.environ, ntasks, launch.geometry.gpus_per_node, cpus)
    if said is not None:
        _say(said)


def _spawn(folder: Path, ntasks: int) -> int:
    from dlbhpc.layout import OutputLayout
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.sbatch import tasks_per_node
    from dlbhpc.scheduler.spawn import spawn

    expected = tasks_per_node(read_run(OutputLayout(folder.parent.parent)).launch)
    if ntasks != expected:
        raise DlbhpcError(f"--ntasks is {ntasks}, the attempt {folder} has {expected} tasks")
    argv = [sys.executable, "-m", "dlbhpc", "attempt", "task", str(folder)]
    return spawn(argv, ntasks)


def _end(folder: Path, status: int) -> int:
    from dlbhpc.layout import OutputLayout
    from dlbhpc.run.attempt import end
    from dlbhpc.run.lease import release
    from dlbhpc.run.log import last_words_of_failed_ranks
    from dlbhpc.scheduler import queue
    from dlbhpc.scheduler.control import was_cancelled
    from dlbhpc.scheduler.own_job import own_job
    from dlbhpc.scheduler.processes import TOKEN_VARIABLE

    output = OutputLayout(folder.parent.parent)
    job = own_job(os.environ)
    cancelled, taken_back = was_cancelled(output.job, job.job_id), False
    if job.scheduler == "slurm":
        now = queue.look_at(job.job_id)
        taken_back = now.restarts > job.restart_count
        cancelled |= now.is_being_cancelled and not taken_back
    if status not in (0, REQUEUE):
        for line in last_words_of_failed_ranks(output, int(folder.name)):
            _say(line)
    status = end(folder, status, cancelled, _say, taken_back=taken_back)
    if status == REQUEUE and job.scheduler == "slurm":
        try:
            _say(queue.requeue(job.job_id))
        except queue.SlurmError as error:
            _say(f"{error}; the job cannot requeue itself: submit again to go on")
    elif job.scheduler == "slurm" and not taken_back:
        release(output.lease, os.environ.get(TOKEN_VARIABLE, ""))
    return status
