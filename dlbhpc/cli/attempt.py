"""``dlbhpc attempt``: the parts of one attempt, called by the batch script."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.errors import DlbhpcError
from dlbhpc.exit_status import FENCED, REQUEUE, REQUEUE_WANTED

if TYPE_CHECKING:
    from dlbhpc.layout import OutputLayout


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
    from dlbhpc.run.attempt import begin, is_complete
    from dlbhpc.run.ending import settle
    from dlbhpc.run.lease import LeaseHeld
    from dlbhpc.run.log import own_log
    from dlbhpc.scheduler.chain import teacher_jobs, wait_behind
    from dlbhpc.scheduler.control import take_preempted
    from dlbhpc.scheduler.handle import tell_handle
    from dlbhpc.scheduler.own_job import own_job, own_lease
    from dlbhpc.scheduler.verdict import silent_reasons

    output = OutputLayout(folder)
    log = own_log()
    # Before all else: a job is requeued even when it finished within its grace time.
    if is_complete(output, _say):
        return 0
    try:
        own_lease(output, os.environ)
    except LeaseHeld as error:
        _say(f"{error}: nothing was started")
        return FENCED
    job = own_job(os.environ)
    # What was asked of the execution before must not explain the end of this one.
    take_preempted(output.job, job.job_id)
    teacher = teacher_jobs(output)
    if teacher:
        waiting = wait_behind(output, job.job_id, teacher)
        _say(f"the teacher is in job {', '.join(teacher)}: this run waits as job {waiting}")
        return 0
    settle(output, silent_reasons(output), _say)
    try:
        attempt = begin(output, replace(job, log=log), _say)
    except DlbhpcError as error:
        if job.scheduler == "slurm":
            tell_handle(output, job.job_id, str(error))
        raise
    if attempt is not None:
        print(attempt, flush=True)
    return 0


def _task(folder: Path) -> int:
    from dlbhpc.run.attempt import task_command
    from dlbhpc.run.log import rank_of, speak_apart
    from dlbhpc.scheduler.scratch import scratch_environment

    _preflight(folder)
    host = os.environ | scratch_environment(os.environ)
    argv, environment, working_directory = task_command(folder, host)
    os.chdir(working_directory)
    speak_apart(folder, rank_of(os.environ))
    try:
        os.execvpe(argv[0], argv, environment)
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
    from dlbhpc.files import read_json
    from dlbhpc.layout import OutputLayout
    from dlbhpc.run.ending import end
    from dlbhpc.run.lease import release
    from dlbhpc.run.log import last_words_of_failed_ranks
    from dlbhpc.run.reasons import Cause
    from dlbhpc.scheduler.handle import tell_handle
    from dlbhpc.scheduler.own_job import own_job
    from dlbhpc.scheduler.processes import TOKEN_VARIABLE
    from dlbhpc.scheduler.verdict import memory_exceeded, own_cause

    output = OutputLayout(folder.parent.parent)
    job = own_job(os.environ)
    cause = own_cause(output, job, int(folder.name))
    exceeded = memory_exceeded(output, int(folder.name))
    if status not in (0, REQUEUE):
        for line in last_words_of_failed_ranks(output, int(folder.name)):
            _say(line)
    status = end(folder, status, cause, _say, memory_exceeded=exceeded)
    if job.scheduler != "slurm" or cause.is_requeued:
        return status
    if status == REQUEUE:
        return _run_again(folder, output, job.job_id)
    if status != FENCED and cause is not Cause.UNKNOWN:
        said = read_json(folder / "end.json")
        tell_handle(output, job.job_id, f"{said['reason']}: {said['advice']}")
        _end_links(output, job.job_id)
        release(output.lease, os.environ.get(TOKEN_VARIABLE, ""))
    return status


def _end_links(output: OutputLayout, job_id: str) -> None:
    from dlbhpc.scheduler.chain import end_links
    from dlbhpc.scheduler.queue import SlurmError

    try:
        for link in end_links(output, job_id):
            _say(f"job {link}, which waited behind it, is not needed any more")
    except SlurmError as error:
        _say(f"{error}; what waits behind this job ends by itself")


def _run_again(folder: Path, output: OutputLayout, job_id: str) -> int:
    """Put this job into Slurm's queue again; where that is refused, its script as another job."""
    from dlbhpc.run.ending import want_requeue
    from dlbhpc.scheduler import queue
    from dlbhpc.scheduler.chain import take_turns

    try:
        try:
            _say(queue.requeue(job_id))
        except queue.RequeueRefused as refused:
            _say(f"{refused}; {take_turns(output, job_id)}")
    except queue.SlurmError as error:
        want_requeue(folder, str(error))
        _say(f"{error}; the job cannot requeue itself: submit again to go on")
        return REQUEUE_WANTED
    return REQUEUE
