"""Several seeds as one array of a real Slurm: each element is a run of its own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.layout import OutputLayout
from dlbhpc.run.history import read_attempts
from dlbhpc.run.lease import read_lease
from dlbhpc.scheduler.processes import marked, send
from dlbhpc.scheduler.submission import live_lease
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SIZES = "steps=10,batch=8"


def seeds_folder(project: Project) -> Path:
    return project.output.folder.with_name("reference_mdlm-seeds")


def element(project: Project, seed: int) -> OutputLayout:
    return OutputLayout(seeds_folder(project) / f"seed-{seed}")


def report(project: Project, seed: int) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(
        project.dlbhpc("report", str(element(project, seed).folder), "--json").stdout
    )
    return shown


def training(output: OutputLayout) -> list[int]:
    return marked("DLBHPC_ATTEMPT_FILE", str(output.attempt(1) / "attempt.json"))


def freeze_each(project: Project, *seeds: int) -> None:
    """Stop the training of each seed as soon as it made a step."""
    moving = {seed: element(project, seed) for seed in seeds}

    def all_frozen() -> bool:
        for seed, output in list(moving.items()):
            if (output.attempt(1) / "progress.json").exists():
                send(training(output), signal.SIGSTOP)
                del moving[seed]
        return not moving

    eventually(all_frozen, "each has made a step")


def test_seeds_are_one_array_whose_handles_are_submitits(
    cluster: Cluster, project: Project
) -> None:
    import submitit

    project.start("--seeds", "1-2,7", "--array-parallelism", "2", sizes=SIZES)
    jobs = cluster.run("squeue", "--array", "--noheader", "--format=%i").split()
    (array,) = {job.partition("_")[0] for job in jobs}
    assert "ArrayTaskThrottle=2 " in cluster.run("scontrol", "--oneliner", "show", "job", array)
    for seed in (1, 2, 7):
        eventually(lambda seed=seed: live_lease(element(project, seed)) is None, "it has ended")
        assert report(project, seed)["state"] == "completed"
    trained = {s: read_attempts(element(project, s))[0].job_id for s in (1, 2, 7)}
    assert trained == {1: f"{array}_1", 2: f"{array}_2", 7: f"{array}_3"}
    handle: submitit.SlurmJob[Any] = submitit.SlurmJob(seeds_folder(project) / "job", f"{array}_3")
    assert handle.done()
    assert handle.result()["step"] == 10
    assert handle.submission().args == ()
    assert "starts at step 0" in (handle.stdout() or "")
    more = project.submit("--seeds", "1,2,7,8", sizes=SIZES)
    assert more.stdout.count("already complete") == 3
    waiting = cluster.run("squeue", "--array", "--noheader", "--format=%i").split()
    assert [job.partition("_")[2] for job in waiting] == ["4"]


def test_one_element_is_requeued_and_one_is_cancelled_by_itself(
    cluster: Cluster, project: Project
) -> None:
    sizes = "steps=60,batch=8"  # so that none is at its end before all are frozen
    project.start("--seeds", "1-3", sizes=sizes)
    freeze_each(project, 1, 2, 3)
    refused = project.submit("--seeds", "3,4", sizes=sizes)
    assert refused.returncode == 2
    assert "3 (slurm job " in refused.stderr
    assert "--seeds 4" in refused.stderr
    assert not element(project, 4).folder.exists()
    assert project.dlbhpc("cancel", str(element(project, 1).folder)).returncode == 0
    eventually(lambda: live_lease(element(project, 1)) is None, "the first has ended")
    assert project.dlbhpc("preempt", str(element(project, 2).folder)).returncode == 0
    eventually((element(project, 2).attempt(1) / "stop").exists, "the request has arrived")
    send(training(element(project, 2)), signal.SIGCONT)
    eventually(lambda: element(project, 2).attempt(2).exists(), "the second runs again")
    send(training(element(project, 3)), signal.SIGCONT)
    for seed in (2, 3):
        eventually(lambda seed=seed: live_lease(element(project, seed)) is None, "it has ended")
    assert report(project, 1)["state"] == "cancelled"
    ends = {s: [a["end"] for a in report(project, s)["attempts"]] for s in (2, 3)}
    assert ends == {2: ["preempted", "completed"], 3: ["completed"]}
    assert report(project, 2)["steps_repeated"] == 0


def test_an_array_that_slurm_refuses_leaves_nothing_taken(
    cluster: Cluster, project: Project
) -> None:
    done = project.submit("--seeds", "1-2", "--partition", "no-such", sizes=SIZES)
    assert done.returncode == 2
    assert "invalid partition" in done.stderr
    for seed in (1, 2):
        assert read_lease(element(project, seed).lease) is None
        assert not element(project, seed).run.exists()


def test_an_array_whose_submission_was_killed_is_adopted_by_the_next(
    cluster: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = cluster.run("which", "sbatch").strip()
    stub = tmp_path / "bin" / "sbatch"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/bash\n{real} --hold "$@" >/dev/null\nkill -KILL $PPID $$\n')
    stub.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{stub.parent}:{path}")
    assert project.submit("--seeds", "1-2", sizes=SIZES).returncode == -signal.SIGKILL
    monkeypatch.setenv("PATH", path)
    again = project.submit("--seeds", "1-3", sizes=SIZES)
    assert again.returncode == 0, again.stderr
    jobs = cluster.run("squeue", "--array", "--noheader", "--format=%i").split()
    assert len(jobs) == 3, "two of the killed submission, and the third"
    for seed in (1, 2, 3):
        lease = read_lease(element(project, seed).lease)
        assert lease is not None
        assert lease.job_id in jobs
