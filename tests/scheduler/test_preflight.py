"""A task refuses to train in a job that is not what the plan says."""

from __future__ import annotations

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.preflight import check_task

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "0",
    "SLURM_CPUS_PER_TASK": "8",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
}


def check(**changed: str | None) -> str | None:
    merged = SLURM | {key: value for key, value in changed.items() if value is not None}
    environment = {key: value for key, value in merged.items() if changed.get(key, "") is not None}
    return check_task(environment, ntasks=16, gpus_per_node=8, cpus=8)


def test_what_was_planned_is_accepted_and_the_cpus_are_said_once() -> None:
    said = check()
    assert said is not None
    assert said.startswith("task 0 on ")
    assert said.endswith(" may use 8 CPUs")
    assert check(SLURM_PROCID="1") is None


@pytest.mark.parametrize("given", ["2", "32", "", None])
def test_another_number_of_tasks_is_refused(given: str | None) -> None:
    with pytest.raises(DlbhpcError, match="the run has 16 tasks, Slurm started"):
        check(SLURM_NTASKS=given)


@pytest.mark.parametrize(
    ("visible", "number"),
    [("0", 1), ("0,1,2,3", 4), ("", 0), ("NoDevFiles", 0), ("0,1,2,3,4,5,6,7,8", 9)],
)
def test_another_number_of_visible_gpus_is_refused(visible: str, number: int) -> None:
    with pytest.raises(DlbhpcError, match=f"8 GPUs per node, each task on .* sees {number} "):
        check(CUDA_VISIBLE_DEVICES=visible)


def test_gpus_of_amd_are_counted_by_their_own_variable() -> None:
    with pytest.raises(DlbhpcError, match="ROCR_VISIBLE_DEVICES=3"):
        check(CUDA_VISIBLE_DEVICES=None, ROCR_VISIBLE_DEVICES="3")


def test_a_site_that_does_not_say_which_gpus_are_given_is_no_error() -> None:
    assert check(CUDA_VISIBLE_DEVICES=None) is not None


def test_too_few_cpus_are_said() -> None:
    said = check(SLURM_CPUS_PER_TASK="16")
    assert said is not None
    assert "may use 8 CPUs, although 16 were asked for" in said


def test_outside_of_slurm_nothing_is_checked() -> None:
    assert check_task({"CUDA_VISIBLE_DEVICES": "0"}, ntasks=4, gpus_per_node=4, cpus=1) is None
