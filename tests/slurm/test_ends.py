"""Why an attempt on a real Slurm ends, and what happens to its job then."""

from __future__ import annotations

import signal

import pytest

from dlbhpc.run.history import read_attempts
from dlbhpc.scheduler.processes import send
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

ONE = ("--gpus-per-node", "1")
SIZES = "steps=40,batch=8"


def job_of(cluster: Cluster) -> str:
    return cluster.run("squeue", "--noheader", "--format=%A").strip()


@pytest.mark.parametrize("by_us", [True, False], ids=["dlbhpc cancel", "scancel"])
def test_a_cancelled_job_saves_and_is_never_requeued(
    cluster: Cluster, project: Project, by_us: bool
) -> None:
    project.start(*ONE, sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    job = job_of(cluster)
    if by_us:
        assert project.dlbhpc("cancel", str(project.output.folder)).returncode == 0
    else:
        cluster.run("scancel", job)
    project.wait_for_end()
    assert "Restarts=0 " in cluster.run("scontrol", "show", "job", job)
    report = project.report()
    assert report["state"] == "cancelled"
    assert project.ends() == ["cancelled"]
    assert report["step"] >= 1


def test_asked_to_stop_it_requeues_itself_exactly_once(cluster: Cluster, project: Project) -> None:
    project.start(*ONE, sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    job = job_of(cluster)
    assert project.dlbhpc("preempt", str(project.output.folder)).returncode == 0
    send(project.training(1), signal.SIGCONT)
    eventually(lambda: project.progress(2), "the second attempt trains")
    assert "Restarts=1 " in cluster.run("scontrol", "show", "job", job)
    project.wait_for_end()
    assert project.ends() == ["preempted", "completed"]
    assert project.report()["steps_repeated"] == 0


def test_a_crash_of_the_upstream_runs_again_as_often_as_the_user_said_and_no_more(
    cluster: Cluster, project: Project
) -> None:
    project.start(*ONE, "--retries", "1", sizes=SIZES)
    job = job_of(cluster)
    for attempt in (1, 2):
        project.freeze_at(attempt, step=1)
        training = project.training(attempt)
        send(training, signal.SIGSEGV)
        send(training, signal.SIGCONT)
        project.wait_for_attempt_to_end(attempt)
    project.wait_for_end()
    assert "Restarts=1 " in cluster.run("scontrol", "show", "job", job)
    assert project.ends() == ["upstream failed", "upstream failed"]
    assert read_attempts(project.output)[1].status == 128 + signal.SIGSEGV
    assert project.report()["state"] == "upstream failed"


def test_too_much_memory_is_said_and_is_not_requeued(cluster: Cluster, project: Project) -> None:
    project.start(*ONE, "--memory", "250M", "--retries", "1", sizes=SIZES)
    job = job_of(cluster)
    project.wait_for_end()
    assert project.ends() == ["out of memory"]
    assert "Restarts=0 " in cluster.run("scontrol", "show", "job", job)
    assert "memory" in project.dlbhpc("status").stdout
