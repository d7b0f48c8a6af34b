"""What a task looks at before it trains: whether Slurm gave the job what the plan says.

A mismatch would else show as a rendezvous that times out after half an hour, or as another batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dlbhpc.errors import DlbhpcError

_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""What Slurm sets for GPUs of NVIDIA, AMD and Intel (its gres page, section GPU Management)."""


def check_task(
    environment: Mapping[str, str], ntasks: int, gpus_per_node: int, cpus: int
) -> str | None:
    """Raise DlbhpcError unless this task of a job of Slurm's sees what was planned.

    ``cpus`` are the CPUs that it may use. Returns a sentence about them from the first task, since
    too few of them slow the training but do not falsify it. Outside of Slurm nothing is checked.
    """
    if "SLURM_JOB_ID" not in environment:
        return None
    host = os.uname().nodename
    given = environment.get("SLURM_NTASKS", "none")
    if given != str(ntasks):
        raise DlbhpcError(
            f"the run has {ntasks} tasks, Slurm started {given} of them (SLURM_NTASKS): a line of "
            "the cluster profile, or a filter of the site, changes the job"
        )
    variable = next((name for name in _DEVICE_VARIABLES if name in environment), None)
    if variable is not None and _count(environment[variable]) != gpus_per_node:
        raise DlbhpcError(
            f"the run uses {gpus_per_node} GPUs per node, each task on {host} sees "
            f"{_count(environment[variable])} ({variable}={environment[variable]}): look for what "
            "binds GPUs to tasks in the cluster profile, or ask the site"
        )
    if environment.get("SLURM_PROCID") != "0":
        return None
    asked = environment.get("SLURM_CPUS_PER_TASK", "")
    few = asked.isdecimal() and cpus < int(asked)
    return f"task 0 on {host} may use {cpus} CPUs" + (
        f", although {asked} were asked for: loading data may be slow" if few else ""
    )


def _count(devices: str) -> int:
    return len([name for name in devices.split(",") if name and name != "NoDevFiles"])
