"""The job that a process runs in, and the lease that it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.attempt import Job
from dlbhpc.run.lease import Lease, LeaseHeld, acquire, read_lease
from dlbhpc.scheduler.own_job import own_job, own_lease
from dlbhpc.scheduler.processes import JOB_VARIABLE, RESTART_VARIABLE, TOKEN_VARIABLE


def test_a_local_job_inside_an_allocation_is_a_local_job() -> None:
    environment = {JOB_VARIABLE: "99", RESTART_VARIABLE: "2", "SLURM_JOB_ID": "42"}
    assert own_job(environment) == Job("99", 2, "local")


@pytest.mark.parametrize(("count", "expected"), [(None, 0), ("3", 3)])
def test_a_job_of_slurm(count: str | None, expected: int) -> None:
    environment = {"SLURM_JOB_ID": "42"} | ({"SLURM_RESTART_COUNT": count} if count else {})
    assert own_job(environment) == Job("42", expected, "slurm")


def test_outside_of_a_job_it_says_how_to_get_one() -> None:
    with pytest.raises(DlbhpcError, match="dlbhpc submit"):
        own_job({})


def test_a_job_of_slurm_writes_its_own_id_into_its_lease(tmp_path: Path) -> None:
    output = OutputLayout(tmp_path)
    lease = Lease.new("slurm", "", 1, "boot/1")
    acquire(output.lease, lease, lambda _: True)
    own_lease(output, {TOKEN_VARIABLE: lease.token, "SLURM_JOB_ID": "42"})
    held = read_lease(output.lease)
    assert held is not None
    assert (held.job_id, held.token) == ("42", lease.token)


@pytest.mark.parametrize("token", ["another", ""])
def test_a_job_without_the_lease_does_not_begin(tmp_path: Path, token: str) -> None:
    output = OutputLayout(tmp_path)
    with pytest.raises(LeaseHeld, match="is gone"):
        own_lease(output, {TOKEN_VARIABLE: token})
    acquire(output.lease, Lease.new("local", "41", 1, "boot/1"), lambda _: True)
    with pytest.raises(LeaseHeld, match="job 41"):
        own_lease(output, {TOKEN_VARIABLE: token})
