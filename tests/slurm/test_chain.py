"""Jobs queued behind a run on a real Slurm: they take it over, or are not needed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dlbhpc.files import read_json
from dlbhpc.run.history import read_attempts
from dlbhpc.scheduler.processes import send
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually, kill_job

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SIZES = "steps=20,batch=8"
ONE_GPU = ("--gpus-per-node", "1")


def queue(cluster: Cluster) -> dict[str, str]:
    """Each job's state by its id."""
    lines = cluster.run("squeue", "--array", "--noheader", "--format=%i %T").splitlines()
    return dict(line.split() for line in lines)


def ledger_jobs(project: Project) -> list[str]:
    jobs: list[str] = read_json(project.output.job / "submission.json")["jobs"]
    return jobs


def test_a_link_takes_over_where_nothing_of_the_job_was_alive_to_requeue_it(
    cluster: Cluster, project: Project
) -> None:
    """The first link goes on, the second is not needed."""
    project.start(*ONE_GPU, "--chain", "2", sizes=SIZES)
    first, link, spare = ledger_jobs(project)
    project.freeze_at(attempt=1, step=5)
    assert queue(cluster) == {first: "RUNNING", link: "PENDING", spare: "PENDING"}
    kill_job(first)
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "completed"
    assert [attempt.job_id for attempt in read_attempts(project.output)] == [first, link]
    assert report["attempts"][1]["from_step"] == 5
    eventually(lambda: not queue(cluster), "the spare link is cancelled")
    again = project.submit(*ONE_GPU, "--chain", "2", sizes=SIZES)
    assert "already complete" in again.stdout


def test_cancelling_a_run_ends_its_whole_chain(cluster: Cluster, project: Project) -> None:
    project.start(*ONE_GPU, "--chain", "2", sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    assert len(queue(cluster)) == 3
    assert project.dlbhpc("cancel", str(project.output.folder)).returncode == 0
    project.wait_for_end()
    assert project.report()["state"] == "cancelled"
    eventually(lambda: not queue(cluster), "nothing of the chain is left")
    assert len(read_attempts(project.output)) == 1


def test_links_wait_while_the_job_before_them_is_requeued(
    cluster: Cluster, project: Project
) -> None:
    project.start(*ONE_GPU, "--chain", "1", sizes=SIZES)
    first, _ = ledger_jobs(project)
    project.freeze_at(attempt=1, step=1)
    assert project.dlbhpc("preempt", str(project.output.folder)).returncode == 0
    eventually((project.output.attempt(1) / "stop").exists, "the request has arrived")
    send(project.training(1), signal.SIGCONT)
    project.wait_for_end()
    assert [attempt.job_id for attempt in read_attempts(project.output)] == [first, first]
    assert project.report()["state"] == "completed"


def test_a_chain_whose_submission_was_killed_is_made_whole_by_the_next(
    cluster: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = cluster.run("which", "sbatch").strip()
    stub = tmp_path / "bin" / "sbatch"
    stub.parent.mkdir()
    # The job is made; the command that asked for it dies before it hears of it.
    stub.write_text(f'#!/bin/bash\n{real} --hold "$@" >/dev/null\nkill -KILL $PPID $$\n')
    stub.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{stub.parent}:{path}")
    assert project.submit(*ONE_GPU, "--chain", "2", sizes=SIZES).returncode == -signal.SIGKILL
    (orphan,) = queue(cluster)
    assert ledger_jobs(project) == []
    monkeypatch.setenv("PATH", path)
    second = project.submit(*ONE_GPU, "--chain", "2", sizes=SIZES)
    assert second.returncode == 0, second.stderr
    assert f"a command that died: its job is {orphan}" in second.stdout
    assert set(queue(cluster)) == set(ledger_jobs(project))
    assert ledger_jobs(project)[0] == orphan
    assert len(ledger_jobs(project)) == 3
    third = project.submit(*ONE_GPU, "--chain", "2", sizes=SIZES)
    assert third.returncode == 2
    assert len(queue(cluster)) == 3


def test_two_jobs_where_one_was_submitted_stop_everything_and_are_both_named(
    cluster: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = cluster.run("which", "sbatch").strip()
    stub = tmp_path / "bin" / "sbatch"
    stub.parent.mkdir()
    stub.write_text(
        f'#!/bin/bash\n{real} --hold "$@" >/dev/null\n{real} --hold "$@" >/dev/null\nexit 1\n'
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    done = project.submit(*ONE_GPU, sizes=SIZES)
    assert done.returncode == 2
    assert len(queue(cluster)) == 2
    assert all(job in done.stderr for job in queue(cluster))
    again = project.submit(*ONE_GPU, sizes=SIZES)
    assert again.returncode == 2
    assert len(queue(cluster)) == 2
