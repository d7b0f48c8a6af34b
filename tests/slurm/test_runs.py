"""Whole runs on a real Slurm of several nodes, whatever ends their attempts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.layout import CHECKOUT
from dlbhpc.scheduler.processes import send
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually, identical

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SIZES = "steps=20,batch=8"
SHAPE = ("--nodes", "2", "--gpus-per-node", "1")


def job_ids(cluster: Cluster) -> list[str]:
    return cluster.run("squeue", "--noheader", "--format=%A").split()


def test_preempted_by_a_higher_priority_job_it_ends_with_the_same_bits(
    cluster: Cluster, project: Project, new_project: Callable[..., Project]
) -> None:
    project.start(*SHAPE, sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    cluster.run(
        "sbatch", "--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null",
        "--wrap=sleep 1",
    )  # fmt: skip
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "completed"
    assert [attempt["end"] for attempt in report["attempts"]] == ["preempted", "completed"]
    assert report["steps_repeated"] == 0
    # The same world on this machine, without Slurm and without a stop.
    straight = new_project("straight")
    done = straight.submit("--gpus-per-node", "2", "--follow", sizes=SIZES)
    assert done.returncode == 0, done.stderr
    assert identical(project.state(), straight.state())


def test_a_cancelled_job_saves_and_is_not_requeued(cluster: Cluster, project: Project) -> None:
    project.start("--gpus-per-node", "1", sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    assert project.dlbhpc("cancel", str(project.output.folder)).returncode == 0
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "cancelled"
    assert len(report["attempts"]) == 1
    assert report["step"] >= 1


def test_asked_to_stop_it_requeues_itself_exactly_once(cluster: Cluster, project: Project) -> None:
    project.start("--gpus-per-node", "1", sizes=SIZES)
    (job,) = job_ids(cluster)
    project.freeze_at(attempt=1, step=1)
    assert project.dlbhpc("preempt", str(project.output.folder)).returncode == 0
    send(project.training(1), signal.SIGCONT)
    eventually(lambda: project.progress(2), "the second attempt trains")
    assert f"JobId={job} " in cluster.run("scontrol", "show", "job", job)
    assert "Restarts=1 " in cluster.run("scontrol", "show", "job", job)
    project.wait_for_end()
    report = project.report()
    assert [attempt["end"] for attempt in report["attempts"]] == ["preempted", "completed"]
    assert report["steps_repeated"] == 0


def test_a_node_that_is_lost_leaves_a_ghost_that_publishes_nothing(
    cluster: Cluster, project: Project
) -> None:
    project.start("--gpus-per-node", "1", sizes=SIZES)
    project.freeze_at(attempt=1, step=5)
    (job,) = job_ids(cluster)
    node = cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    ghost = project.training(1)
    cluster.kill_slurmd(node)
    eventually(lambda: project.output.attempt(2).exists(), "the job runs on another node")
    assert project.training(1) == ghost, "the ghost is still there"
    send(ghost, signal.SIGCONT)
    project.wait_for_end()
    eventually(lambda: not project.training(1), "the ghost has left")
    report = project.report()
    assert report["state"] == "completed"
    assert report["attempts"][1]["from_step"] == 5
    # Its batch script, alive on the lost node, may have seen that Slurm took the job back.
    assert report["attempts"][0]["end"] in (None, "interrupted")


def test_two_submissions_at_the_same_instant_make_one_job(
    cluster: Cluster, project: Project
) -> None:
    command = [sys.executable, "-m", "dlbhpc", "submit", "--recipe", "reference_mdlm"]
    command += [f"--trial={SIZES}", "--cluster", "devcluster", "--gpus-per-node", "1"]
    command += ["--root", str(project.root)]
    both = [
        subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    words = [process.communicate()[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert any("still alive" in text for text in words)
    assert len(job_ids(cluster)) == 1


def test_a_submission_killed_before_it_knew_its_job_is_found_by_its_tag(
    cluster: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """sbatch makes the job and dies before it can say so; a second job must not be made."""
    real = cluster.run("which", "sbatch").strip()
    stub = tmp_path / "bin" / "sbatch"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/bash\n{real} --hold "$@" >/dev/null\nkill -KILL $$\n')
    stub.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{stub.parent}:{path}")
    first = project.submit("--gpus-per-node", "1", sizes=SIZES)
    assert first.returncode == 0, first.stderr
    (job,) = job_ids(cluster)
    assert f"as {job}" in first.stdout
    monkeypatch.setenv("PATH", path)
    second = project.submit("--gpus-per-node", "1", sizes=SIZES)
    assert second.returncode == 2
    assert f"job {job}" in second.stderr
    assert job_ids(cluster) == [job]


def test_status_is_never_wrong_while_the_controller_is_away(
    cluster: Cluster, project: Project
) -> None:
    project.start("--gpus-per-node", "1", sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    cluster.kill_controller()
    assert '"unknown"' in project.dlbhpc("status", "--json").stdout
    refused = project.submit("--gpus-per-node", "1", sizes=SIZES)
    assert refused.returncode == 2
    cluster.start_controller()
    send(project.training(1), signal.SIGCONT)
    project.wait_for_end()
    assert project.report()["state"] == "completed"
