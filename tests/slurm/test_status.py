"""What `status` says of runs on a real Slurm that wait, are held, or have ended in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually, kill_job

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SIZES = "steps=20,batch=8"


def row(project: Project) -> dict[str, Any]:
    done = project.dlbhpc("status", "--json")
    assert done.returncode == 0, done.stderr
    (only,) = json.loads(done.stdout)
    assert isinstance(only, dict)
    return only


def fill(cluster: Cluster) -> None:
    """No node is free any more."""
    cluster.run(
        "sbatch", "--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null",
        "--wrap=sleep 600",
    )  # fmt: skip
    eventually(
        lambda: "RUNNING" in cluster.run("squeue", "--noheader", "--format=%T"), "nodes are taken"
    )


def job_of(project: Project, cluster: Cluster) -> str:
    job = row(project)["job"]
    assert isinstance(job, str)
    return job


def test_a_waiting_run_says_for_what_and_can_be_cancelled(
    cluster: Cluster, project: Project
) -> None:
    fill(cluster)
    project.start("--gpus-per-node", "1", sizes=SIZES)
    eventually(lambda: "waits: " in row(project)["note"], "Slurm has looked at the job")
    waiting = row(project)
    assert (waiting["state"], waiting["slurm_state"]) == ("pending", "PENDING")
    assert waiting["eta_seconds"] is None
    assert project.report()["state"] == "pending"
    preempted = project.dlbhpc("preempt", str(project.output.folder))
    assert preempted.returncode == 2
    assert "ERROR: " in preempted.stderr
    assert project.dlbhpc("cancel", str(project.output.folder)).returncode == 0
    project.wait_for_end()
    assert row(project)["state"] == "cancelled"
    assert project.report()["state"] == "cancelled"


def test_a_held_run_says_how_to_release_it_and_then_goes_on(
    cluster: Cluster, project: Project
) -> None:
    project.start("--gpus-per-node", "1", sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    job = job_of(project, cluster)
    cluster.run("scontrol", "requeuehold", job)
    eventually(lambda: row(project)["state"] == "held", "the job is held")
    note = row(project)["note"]
    assert f"scontrol release {job}" in note
    cluster.run("scontrol", "release", job)
    project.wait_for_end()
    assert row(project)["state"] == "completed"


def test_a_run_that_was_killed_without_a_word_is_never_complete(
    cluster: Cluster, project: Project
) -> None:
    project.start("--gpus-per-node", "1", sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    kill_job(job_of(project, cluster))
    project.wait_for_end()
    ended = row(project)
    assert ended["state"] == "interrupted"
    assert "submit again" in ended["note"]
