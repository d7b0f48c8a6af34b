"""The embedded scheduler: jobs of this machine that requeue as Slurm's would.

submitit's local executor carries :class:`LocalBatch` into a process of its own. There it plays
Slurm's part: it runs the batch script, delivers what `dlbhpc preempt` and `dlbhpc cancel` ask for,
and starts the script again under the same job id when it has to run once more.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import submitit
from submitit.local import local as submitit_local

from dlbhpc.exit_status import REQUEUE
from dlbhpc.layout import CHECKOUT, OutputLayout
from dlbhpc.run.lease import Lease, release, rewrite
from dlbhpc.scheduler import control
from dlbhpc.scheduler.processes import (
    JOB_VARIABLE,
    RESTART_VARIABLE,
    STEP_VARIABLE,
    ProcessId,
    marked,
    send,
)

_POLL_SECONDS = 0.1
# submitit counts a job's time in whole minutes and ends it then; a local job has no limit.
_NO_LIMIT_MINUTES = 366 * 24 * 60


class LocalExecutor(submitit.LocalExecutor):
    """submitit's local executor, with jobs that outlive the terminal and have no time limit."""

    def _submit_command(self, command: str) -> submitit.LocalJob[Any]:
        environment = os.environ | {
            "SUBMITIT_LOCAL_NTASKS": "1",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_TIMEOUT_S": str(60 * _NO_LIMIT_MINUTES),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
            "PYTHONPATH": str(CHECKOUT),
        }
        # A session of its own: neither Ctrl-C nor the end of the terminal reaches the job.
        process = subprocess.Popen(
            [sys.executable, "-m", "submitit.local._local", str(self.folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return submitit_local.LocalJob(
            folder=self.folder, job_id=str(process.pid), tasks=[0], process=process
        )


@dataclass(frozen=True)
class LocalBatch:
    """One local job: runs its batch script, again and again while it is to be requeued."""

    output: OutputLayout
    token: str

    def __call__(self) -> int:
        """Returns the batch script's last exit status."""
        job_id = submitit.JobEnvironment().job_id
        own = ProcessId.of(os.getpid())
        assert own is not None, "a running process has an entry in /proc"
        lease = Lease.new("local", job_id, own.pid, own.started, self.token)
        rewrite(self.output.lease, lease)
        try:
            for restart in itertools.count():
                status, delivered = self._run_once(job_id, restart)
                # Slurm requeues what it preempted whatever its status; the script asks by status.
                again = delivered == control.PREEMPT or (delivered is None and status == REQUEUE)
                if not again:
                    break
        finally:
            send(marked(JOB_VARIABLE, job_id), signal.SIGKILL)
        release(self.output.lease, self.token)
        return status

    def _run_once(self, job_id: str, restart: int) -> tuple[int, str | None]:
        environment = os.environ | {
            JOB_VARIABLE: job_id,
            RESTART_VARIABLE: str(restart),
        }
        batch = subprocess.Popen(["bash", str(self.output.batch_script)], env=environment)
        delivered: str | None = None
        kill_at: float | None = None
        while (status := batch.poll()) is None:
            request = control.take(self.output.control)
            if request is not None and request.action == control.CANCEL:
                # Counts after a preemption too: then the job saves as asked, and is not requeued.
                control.mark_cancelled(self.output.job, job_id)
            if request is not None and delivered is None and request.grace_seconds > 0:
                _ask_to_stop(batch.pid, job_id)
            if request is not None and delivered != control.CANCEL:
                delivered = request.action
                kill_at = time.monotonic() + request.grace_seconds
            if kill_at is not None and time.monotonic() > kill_at:
                send(marked(JOB_VARIABLE, job_id), signal.SIGKILL)
                kill_at = None
            time.sleep(_POLL_SECONDS)
        # Nothing of an attempt may live on into the next one.
        send(marked(JOB_VARIABLE, job_id), signal.SIGKILL)
        return status if status >= 0 else 128 - status, delivered


def end_unattended(job_id: str, grace_seconds: float) -> None:
    """End a job whose scheduler process died before it: ask, wait for the grace time, kill."""
    _ask_tasks(job_id)
    deadline = time.monotonic() + grace_seconds
    while marked(JOB_VARIABLE, job_id) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    send(marked(JOB_VARIABLE, job_id), signal.SIGKILL)


def _ask_to_stop(batch: int, job_id: str) -> None:
    """Both ways in which Slurm asks: USR2 to the batch shell, CONT and TERM to the steps."""
    send([batch], signal.SIGUSR2)
    _ask_tasks(job_id)


def _ask_tasks(job_id: str) -> None:
    step = marked(STEP_VARIABLE, job_id)
    send(step, signal.SIGCONT)
    send(step, signal.SIGTERM)
