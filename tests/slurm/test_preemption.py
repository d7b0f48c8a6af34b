"""Runs on a real Slurm lose nothing to preemption and to time limits, however these come."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from dlbhpc.run.history import read_attempts, steps_repeated
from dlbhpc.scheduler.processes import marked, send
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually, identical

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SHAPE = ("--nodes", "2", "--gpus-per-node", "2")
SIZES = "steps=40,batch=8"
MILESTONE = 5
Straight = Callable[[int, str], Project]


def preempt(cluster: Cluster) -> None:
    """A job of a higher priority wants all nodes, for a moment."""
    options = ("--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null")
    cluster.run("sbatch", *options, "--wrap=sleep 1")


def preempt_without_a_moment(cluster: Cluster, job: str) -> None:
    """Preempt a job that gets no time to act.

    Slurm lets a job's processes go on and leaves them KillWait, which is never quite nothing: they
    are stopped again and again until they are gone.
    """
    processes = marked("SLURM_JOB_ID", job)
    send(processes, signal.SIGSTOP)
    preempt(cluster)

    def gone() -> bool:
        for _ in range(50):  # More often than it takes to make a step and save it.
            send(processes, signal.SIGSTOP)
            time.sleep(0.001)
        return not set(processes) & set(marked("SLURM_JOB_ID", job))

    eventually(gone, "Slurm has killed the job's processes")


def job_of(project: Project, attempt: int) -> str:
    return read_attempts(project.output)[attempt - 1].job_id


def freeze_behind(project: Project, attempt: int, least: int = 1) -> None:
    """Stop an attempt's training once it has made a step itself, `least` or a later one."""
    record = project.output.attempt(attempt) / "attempt.json"
    eventually(record.exists, f"attempt {attempt} begins")
    eventually(lambda: project.training(attempt), f"attempt {attempt} trains")
    begun = json.loads(record.read_text())["resumed_from"] or 0
    project.freeze_at(attempt, max(begun + 1, least))


def files_of(project: Project) -> dict[Path, int]:
    """Every file of the run but the job's log, and when it was last changed."""
    paths = project.output.folder.rglob("*")
    return {path: path.stat().st_mtime_ns for path in paths if "job" not in path.parts}


def test_preempted_three_times_it_repeats_no_step_and_ends_with_the_same_bits(
    cluster: Cluster, project: Project, straight: Straight
) -> None:
    project.start(*SHAPE, sizes=SIZES)
    for attempt in (1, 2, 3):
        freeze_behind(project, attempt)
        preempt(cluster)
        project.wait_for_attempt_to_end(attempt)
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "completed"
    assert project.ends() == ["preempted", "preempted", "preempted", "completed"]
    steps = [(item["from_step"], item["to_step"]) for item in report["attempts"]]
    assert all(begun < reached for begun, reached in steps), "each attempt came further"
    assert report["steps_repeated"] == 0
    assert identical(project.state(), straight(4, SIZES).state())

    # Slurm may requeue even a job that has finished: then there is nothing to do.
    job, before = job_of(project, 4), files_of(project)
    cluster.run("scontrol", "requeue", job)
    eventually(
        lambda: "Restarts=4 " in cluster.run("scontrol", "show", "job", job), "it is requeued"
    )
    eventually(
        lambda: "JobState=COMPLETED " in cluster.run("scontrol", "show", "job", job), "it ran again"
    )
    assert files_of(project) == before


def test_cancelled_by_preemption_and_by_its_time_limit_it_runs_again_by_itself(
    cluster: Cluster, project: Project, straight: Straight
) -> None:
    project.start(*SHAPE, "--partition", "cancel", sizes=SIZES)
    # Preemption that cancels, with a grace time.
    freeze_behind(project, 1)
    preempt(cluster)
    # A limit that is near: Slurm sends the signal that the batch script asked for.
    freeze_behind(project, 2)
    job = job_of(project, 1)
    cluster.run("scontrol", "update", f"jobid={job}", "TimeLimit=1")
    eventually((project.output.attempt(2) / "stop").exists, "the warning has come")
    send(project.training(2), signal.SIGCONT)
    project.wait_for_attempt_to_end(2)
    eventually(lambda: "Restarts=2 " in cluster.run("scontrol", "show", "job", job), "it requeues")
    cluster.run("scontrol", "update", f"jobid={job}", "TimeLimit=60")
    # A limit that comes without a warning: KillWait is all the time there is.
    freeze_behind(project, 3)
    now = datetime.now().isoformat(timespec="seconds")
    cluster.run("scontrol", "update", f"jobid={job}", f"EndTime={now}")
    project.wait_for_attempt_to_end(3)
    eventually(lambda: "Restarts=3 " in cluster.run("scontrol", "show", "job", job), "it requeues")
    cluster.run("scontrol", "update", f"jobid={job}", "TimeLimit=60")
    project.wait_for_end()
    assert project.ends() == ["preempted", "time limit", "time limit", "completed"]
    assert {item.job_id for item in read_attempts(project.output)} == {job}
    assert steps_repeated(read_attempts(project.output)) == 0
    assert identical(project.state(), straight(4, SIZES).state())


def test_without_grace_it_repeats_no_more_than_one_saving_interval(
    start_cluster: Callable[..., Cluster],
    new_project: Callable[..., Project],
    straight: Straight,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of ours can act: Slurm requeues, or (CANCEL) the user says `requeue`."""
    cluster = start_cluster(accounting=True, kill_wait_seconds=0)
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    project = new_project("project", cluster="devcluster")
    sizes = f"{SIZES},milestone={MILESTONE}"
    project.start(*SHAPE, "--partition", "requeue-now", sizes=sizes)
    freeze_behind(project, 1, least=MILESTONE + 1)
    job = job_of(project, 1)
    preempt_without_a_moment(cluster, job)
    eventually(lambda: "Restarts=1 " in cluster.run("scontrol", "show", "job", job), "it requeues")
    cluster.run("scontrol", "update", f"jobid={job}", "partition=cancel-now")
    freeze_behind(project, 2, least=2 * MILESTONE + 1)
    alive = project.dlbhpc("requeue", str(project.output.folder))
    assert (alive.returncode, "still alive" in alive.stderr) == (2, True)
    preempt_without_a_moment(cluster, job)
    project.wait_for_end()
    assert project.ends() == ["preempted", None], "the accounting told why the first one ended"
    again = project.dlbhpc("requeue", str(project.output.folder))
    assert again.returncode == 0, again.stderr
    eventually(lambda: project.output.attempt(3).exists(), "a third attempt begins")
    project.wait_for_end()
    assert project.ends() == ["preempted", "preempted", "completed"]
    first, second, third = read_attempts(project.output)
    assert third.job_id != job
    for earlier, later in ((first, second), (second, third)):
        assert 0 <= earlier.reached - later.resumed_from < MILESTONE
        assert later.resumed_from >= earlier.resumed_from + MILESTONE
    assert identical(project.state(), straight(4, SIZES).state())
