"""What srun is on a cluster: start one task per device on this machine and wait for all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from dlbhpc.exit_status import REQUEUE
from dlbhpc.scheduler.processes import JOB_VARIABLE, STEP_VARIABLE

# A shell inside a Slurm allocation carries these; Lightning would take its ranks from them.
_CLUSTER_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
_POLL_SECONDS = 0.05
_KILL_WAIT_SECONDS = 30.0


def task_environment(base: Mapping[str, str], rank: int) -> dict[str, str]:
    """The environment of one task on a single node, in the variables that Lightning reads."""
    environment = {
        key: value for key, value in base.items() if not key.startswith(_CLUSTER_PREFIXES)
    }
    environment |= {
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        STEP_VARIABLE: base.get(JOB_VARIABLE, str(os.getpid())),
    }
    return environment


def spawn(argv: Sequence[str], ntasks: int) -> int:
    """Run ``argv`` once per task; the first task that fails ends the others.

    Returns the first failing task's exit status (128 + N for signal N), or 0.
    """
    tasks = [
        subprocess.Popen(argv, env=task_environment(os.environ, rank)) for rank in range(ntasks)
    ]
    failed = 0
    deadline: float | None = None
    while any(task.poll() is None for task in tasks):
        if deadline is None:
            failed = next((code for task in tasks if (code := _exit_status(task))), 0)
            if failed:
                # Ranks that wait for the lost one in a collective cannot end by themselves; after
                # a requested stop all have agreed to leave, and only need a moment.
                if failed != REQUEUE:
                    _name_the_failed(tasks)
                    _terminate(tasks)
                deadline = time.monotonic() + _KILL_WAIT_SECONDS
        elif time.monotonic() > deadline:
            for task in tasks:
                task.kill()
        time.sleep(_POLL_SECONDS)
    return failed or next((code for task in tasks if (code := _exit_status(task))), 0)


def _name_the_failed(tasks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Say which tasks failed, in srun's words: who reads the log knows whose words to look for."""
    for rank, task in enumerate(tasks):
        if status := _exit_status(task):
            print(f"spawn: error: task {rank}: Exited with exit code {status}", file=sys.stderr)


def _terminate(tasks: Sequence[subprocess.Popen[bytes]]) -> None:
    for task in tasks:
        if task.poll() is None:
            task.terminate()


def _exit_status(task: subprocess.Popen[bytes]) -> int | None:
    code = task.poll()
    return code if code is None or code >= 0 else 128 - code
