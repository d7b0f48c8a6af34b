"""What a task looks at is what a real Slurm sets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.layout import CHECKOUT
from slurm.devcluster.cluster import Cluster
from tests.project import eventually

pytestmark = pytest.mark.slurm

CHECK = """
import os
from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.preflight import check_task
try:
    print(check_task(os.environ, ntasks=4, gpus_per_node=2, cpus=3) or "fine")
except DlbhpcError as error:
    print("refused:", error)
"""


@pytest.fixture
def checked(
    cluster: Cluster, submit: Callable[..., str], tmp_path: Path
) -> Callable[..., list[str]]:
    """What the tasks of a job said that was started with these options of sbatch and of srun."""

    def run(*sbatch: str, srun: str = "") -> list[str]:
        check = tmp_path / "check.py"
        check.write_text(CHECK)
        script = f"PYTHONPATH={CHECKOUT} srun {srun} {sys.executable} {check}"
        job = submit(cluster, script, "--nodes=2", "--gpus-per-node=2", *sbatch)
        state = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        eventually(lambda: cluster.run(*state).strip() in ("COMPLETED", "FAILED"), "it has ended")
        return sorted((tmp_path / f"{job}.log").read_text().splitlines())

    return run


def test_a_job_as_it_was_planned_is_accepted(checked: Callable[..., list[str]]) -> None:
    said = checked("--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=2", srun="-c2")
    assert said[:3] == ["fine"] * 3
    assert said[3].endswith(" may use 3 CPUs")


def test_fewer_cpus_than_were_asked_for_are_said(checked: Callable[..., list[str]]) -> None:
    said = checked("--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=4", srun="-c4")
    assert "may use 3 CPUs, although 4 were asked for" in said[3]


def test_another_number_of_tasks_is_refused(checked: Callable[..., list[str]]) -> None:
    said = checked("--ntasks=2", "--ntasks-per-node=1")
    assert len(said) == 2
    assert all("refused: the run has 4 tasks, Slurm started 2" in line for line in said)


def test_gpus_bound_to_tasks_are_refused(checked: Callable[..., list[str]]) -> None:
    bound = "--gpus-per-task=1 --gpu-bind=single:1"
    said = checked("--ntasks=4", "--ntasks-per-node=2", srun=bound)
    assert len(said) == 4
    assert all("refused: the run uses 2 GPUs per node, each task on" in line for line in said)
